"""`ale serve`: a trained policy behind the endpoint at which agents met it in training.

1. `served_model.py` finds what is served: the policy and the settings of a run folder, or a model folder.
2. `conversations.py` gives each call the model session of its conversation, so that tokens stay exact over turns.
3. `app.py` is the endpoint of `ale_endpoint` with keys of its own, `/health` and `/metrics`.
4. `serve.py` opens the engine, listens, and closes everything when a signal comes; `command.py` is the command line.
"""
