"""What stands between a reply and the next one: rendered from the reply alone where the template allows it, the same as
from the whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.messages import Message, ToolCall, ToolSpec
from ale.session.tokenizer import CHAT_TEMPLATE, ChatTokenizer, byte_tokenizer

CHATML = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""In the manner of Qwen 2.5: a system message of its own, answers of tools gathered into a turn of the user."""
NUMBERED = """\
{%- for m in messages %}{{- '<|im_start|>' ~ loop.index ~ m.role ~ ': ' ~ m.content ~ '<|im_end|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>' ~ (messages | length + 1) ~ 'assistant: ' }}{%- endif %}"""
FORGETFUL = """\
{%- for m in messages %}
{%- if loop.last or m.role != 'assistant' %}{{- '<|im_start|>' ~ m.role ~ ': ' ~ m.content ~ '<|im_end|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant: ' }}{%- endif %}"""
TOOLS = (ToolSpec("shell", "Run.", {"type": "object", "properties": {"command": {"type": "string"}}}),)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
CALLS = st.lists(st.builds(ToolCall, st.just("c"), st.just("shell"), st.just('{"command": "ls"}')), max_size=2).map(
    tuple
)
MESSAGES = st.one_of(
    st.builds(Message, st.sampled_from(["system", "user", "tool"]), TEXT),
    st.builds(Message, st.just("assistant"), TEXT, CALLS),
)


def with_template(template: str) -> ChatTokenizer:
    """The byte tokenizer with another chat template."""
    hugging_face = byte_tokenizer()._hf
    hugging_face.chat_template = template
    return ChatTokenizer(hugging_face)


@pytest.mark.parametrize(("template", "local"), [(CHAT_TEMPLATE, True), (CHATML, True), (NUMBERED, False)])
def test_whether_a_template_looks_far_back_is_seen(template: str, local: bool) -> None:
    assert with_template(template).is_local == local


def test_a_template_that_rewrites_what_it_wrote_has_no_continuation() -> None:
    forgetful = with_template(FORGETFUL)
    talk = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
    assert forgetful.continuation(talk, 2) is None


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([CHAT_TEMPLATE, CHATML, NUMBERED]),
    st.lists(MESSAGES, max_size=8),
    TEXT,
    CALLS,
    st.lists(MESSAGES, max_size=4),
)
def test_a_continuation_is_what_the_whole_template_would_write(
    template: str, before: list[Message], said: str, calls: tuple[ToolCall, ...], after: list[Message]
) -> None:
    tokenizer = with_template(template)
    talk = (Message("user", "go"), *before, Message("assistant", said, calls), *after)
    n = len(before) + 2
    for tools in ((), TOOLS):
        whole = tokenizer.render(talk, tools, prompt=True)
        head = tokenizer.render(talk[:n], tools, prompt=False)
        found = tokenizer.continuation(talk, n, tools)
        if "<|im_end|>" in said:
            continue  # the text of a stop token in a reply, which no reply has: it would have ended there
        if found is None:
            assert not whole.startswith(head)
        else:
            end = tokenizer.stop_token_ids[0]
            assert (end, head.rpartition("<|im_end|>")[2] + whole[len(head) :]) == found
