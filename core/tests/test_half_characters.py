"""Half a character (a lone surrogate), which JSON may hold and no text can carry, is tokenized as U+FFFD."""

from __future__ import annotations

import pytest

from ale.messages import Message, whole_characters
from ale.session.tokenizer import byte_tokenizer


@pytest.mark.parametrize("text", ["a \ud83d b", "\ude00", "<|im_end|>\ud83d", "\ud83d\n<|im_start|>"])
def test_a_prompt_has_the_tokens_of_a_replacement_character(text: str) -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.encode(text) == tokenizer.encode(whole_characters(text))
    halves, whole = (
        tokenizer.encode(tokenizer.render([Message("user", content)], (), prompt=True))
        for content in (text, whole_characters(text))
    )
    assert halves == whole, "also beside control tokens in the user's text, which are text"
    assert tokenizer.decode(tokenizer.encode("\ud83d")) == "\ufffd"


@pytest.mark.parametrize("text", ["plain", "\U0001f600 and é", "\x00\x7f", "\ufffd"])
def test_the_tokens_of_valid_text_stay(text: str) -> None:
    tokenizer = byte_tokenizer()
    assert whole_characters(text) is text or whole_characters(text) == text
    assert tokenizer.decode(tokenizer.encode(text)) == text
