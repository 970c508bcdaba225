"""The model endpoint: every LLM call of every scaffold goes through it, in training as in deployment.

1. `tokenizer.py` renders messages with the model's chat template and turns text into tokens, in one place.
2. `tool_format.py` reads tool calls out of sampled text and writes them for replies that were not sampled.
3. `recorder.py` keeps the exact token sequence of a conversation: a request that extends it reuses the sampled tokens.
4. `session.py` is one episode's line to the model: budget, sampling, errors; `http.py` serves it in the APIs of `dialects`.
5. `forwarding.py` serves the same APIs without an engine: `upstream.py` asks another server (`completions.py` translates),
   `recording.py` keeps every call in a file, `replay.py` answers from one.
"""
