"""The model session over HTTP and over files, and other servers' models behind the same APIs.

1. `session_server.py` serves the sessions of a run's episodes to agents in processes of their own, each under a key.
2. `http_app.py` answers requests. A module of `dialects` turns those of each API into a `ModelCall`, and `openapi.py`
   describes them.
3. `file_protocol.py` answers an agent that has no network, through a log file in its sandbox; `relays` holds the
   programs that run inside the sandbox.
4. `forwarding.py` serves the same APIs without an engine (`ale endpoint serve`): `upstream.py` asks another server
   (`chat_client.py` translates), `recording.py` keeps every call in a file, `replay.py` answers from one.
5. `upstream_engine.py` is the engine `upstream` of a run; `recorded_demonstrations.py` reads recordings as training
   data.
"""
