"""What E2B's daemon `envd` does in a sandbox, done by the worker from outside: processes, folders and files.

E2B starts `envd` in each sandbox and its SDK talks to it. Here the worker answers the same requests through ALE's
sandbox, so nothing listens inside. `routes` has the HTTP side, `connect` the Connect protocol in JSON, `processes` and
`start_script` the service `process.Process`, `folders` the service `filesystem.Filesystem`, `uploads` the files.
"""
