"""The model session: it applies the chat template and the tool format, and records the tokens of each conversation."""
