"""What is streamed of a reply while it is sampled is what the whole reply begins with."""

from __future__ import annotations

import pytest

from ale.session.partial_replies import PartialReply
from ale.session.reply_format import ReplyForm
from ale.session.tokenizer import byte_tokenizer
from ale.session.tool_formats.hermes import Hermes
from ale.session.tool_formats.llama import Llama
from ale.session.tool_formats.qwen_xml import QwenXML
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.tool_format import ToolFormat

TOKENIZER = byte_tokenizer()
HERMES, LLAMA, QWEN = (make(PluginConfig(), DriverContext()) for make in (Hermes, Llama, QwenXML))
JSON_CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (HERMES, "It is é, \U0001f600 and 1 < 2.  \n"),
        (HERMES, f"<think>\nso <b\n</think>\n\nI look.  {JSON_CALL}{JSON_CALL} after"),
        (HERMES, "no call: <tool_cal"),
        (HERMES, "broken: <tool_call>{"),
        (HERMES, "<thin"),
        (QWEN, "I look.\n<tool_call>\n<function=f>\n</function>\n</tool_call>"),
        (LLAMA, '{"name": "f", "parameters": {}}'),
        (LLAMA, "Plain { text"),
        (LLAMA, '<|python_tag|>{"name": "f", "parameters": {}}'),
    ],
)
def test_every_piece_is_the_next_of_the_whole_reply(tool_format: ToolFormat, text: str, within: bool) -> None:
    form = ReplyForm(tool_format)
    whole = form.read(text, "c", within=within).message
    partial = PartialReply(TOKENIZER, form, (), calls=True, within=within)
    ids = TOKENIZER.encode(text)
    thought = content = ""
    for end in range(1, len(ids) + 1):
        more = partial.extend(ids[:end])
        thought, content = thought + more[0], content + more[1]
        assert whole.reasoning.startswith(thought)
        assert whole.content.startswith(content)
    if not whole.tool_calls and "<tool_cal" not in text and "{" not in text and "<thin" not in text:
        assert (thought, content) == (whole.reasoning, whole.content.rstrip())


def test_a_stop_text_is_never_streamed_and_ends_what_is() -> None:
    partial = PartialReply(TOKENIZER, ReplyForm(HERMES), ("STOP",), calls=True, within=False)
    ids = TOKENIZER.encode("a STO b STOP c")
    pieces = [partial.extend(ids[:end])[1] for end in range(1, len(ids) + 1)]
    assert "".join(pieces) == "a STO b"
