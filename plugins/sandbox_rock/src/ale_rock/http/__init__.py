"""HTTP as admin and worker serve it: the server, forms, streams, clients that hang up, and the proxy."""
