"""The policy to start from: a model folder or a name on the Hugging Face hub (`named_model.py`), or one made from
nothing (`scratch.py`)."""
