"""Linux namespaces through bubblewrap, no daemon; a plain subprocess sandbox where there is none."""
