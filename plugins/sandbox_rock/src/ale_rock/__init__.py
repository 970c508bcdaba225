"""Sandboxes as a service in the API of ROCK, and the provider `rock`, which gives them to runs.

- `admin/` knows all sandboxes and workers, and decides; `worker/` owns the sandboxes of one machine.
- `app.py` is the service's application: it mounts the admin's routes, and beside them EnvHub (`envhub/`, a registry of
  environments), GEM (`gem/`, which plays environments in sandboxes) and E2B's API (`e2b/`). They use the admin, which
  does not import them.
- `client/` is the provider `rock`, `commands/` the command line `ale rock`, `ray_cluster/` runs workers on Ray's nodes.
- `schemas/` are the bodies of requests and answers, `http/` what admin and worker share as HTTP servers.
"""
