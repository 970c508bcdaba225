"""The model endpoint: every LLM call of every scaffold goes through it, in training as in deployment.

1. `tokenizer.py` renders messages with the model's chat template and turns text into tokens, in one place.
2. `reply_form.py` reads thoughts and tool calls out of sampled text, by the model's tool format (`tool_formats/`, plugins).
3. `recorder.py` keeps the exact token sequence of a conversation: a request that extends it reuses the sampled tokens.
4. `session.py` is one episode's line to the model: budget, sampling, errors; `prefill.py` has an expert answer first.
5. `http.py` serves sessions in the APIs of `dialects`.
6. `forwarding.py` serves the same APIs without an engine: `upstream.py` asks another server (`completions.py` translates),
   `recording.py` keeps every call in a file, `replay.py` answers from one.
"""
