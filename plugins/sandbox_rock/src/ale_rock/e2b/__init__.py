"""E2B's API, so that E2B's own SDK works with this service: `E2B_API_URL` and `E2B_SANDBOX_URL` are its URL.

- `control_routes` starts, lists, pauses and ends sandboxes; `sandboxes` is how one of the service looks in E2B's words.
- `traffic` takes the requests that name a sandbox by `E2b-Sandbox-Id`: those for `envd` (port 49983) go to the worker,
  which answers them (`ale_rock.worker.envd`), the others to the program that listens at the port.
- `access_tokens` makes the tokens of single sandboxes, `errors` has E2B's errors.
"""

ENVD_VERSION = "0.5.7"
"""By it E2B's SDK knows what `envd` can do: standard input and its end, files as plain bodies; no metadata of files."""
DOMAIN = "set-e2b-sandbox-url-to-the-url-of-this-service.invalid"
"""The domain of all sandboxes. No name ends in `.invalid`, so an SDK without `E2B_SANDBOX_URL`, which would use host
names of the domain, reaches nobody and says this name in its error."""
