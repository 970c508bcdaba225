"""Finds out whether other programs make the same tokens of a text as a run does, with the same folder."""

from __future__ import annotations

from pathlib import Path

from ale.session.tokenizer import ChatTokenizer

PROBE = (
    "def f(x):\n    return x + 12345  # I'll DON'T na\u00efve cafe\u0301 \u4f60\u597d\n\n\n"
    '{"name": "shell", "arguments": {"cmd": "ls -la ../a.txt"}}\t ...\r\n  end'
)


def describe_other_reading(folder: Path) -> str | None:
    """Return a sentence if `AutoTokenizer` of transformers, by which most programs read a folder, makes other tokens
    than its tokenizer.json says, which ALE follows. Called where transformers is imported anyway."""
    from transformers import AutoTokenizer

    try:
        other = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        theirs = list(other(PROBE, add_special_tokens=False).input_ids)
    except Exception as error:  # the library raises any, above all for code that came with a model
        return f"AutoTokenizer of transformers does not read the tokenizer in {folder}: {str(error).splitlines()[0]}"
    ours = ChatTokenizer.load(folder).encode(PROBE)
    if theirs == ours:
        return None
    return (
        f"AutoTokenizer of transformers does not read the tokenizer in {folder} as its tokenizer.json has it "
        f"({type(other).__name__} makes {len(theirs)} tokens of a text that is {len(ours)} in this run, not all the "
        "same). Programs that use it, such as servers, give the trained policy other prompts: let them load "
        "PreTrainedTokenizerFast."
    )
