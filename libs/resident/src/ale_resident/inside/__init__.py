"""What runs inside a sandbox: the resident and all that it imports, which is the standard library and what stands here."""
