"""These tests convert replies between text and message: thoughts, calls, and templates with no place for either."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reply_continuation import CHATML, NUMBERED, with_template

from ale.errors import PluginError
from ale.messages import Message, ToolCall, ToolSpec
from ale.session.recorder import Recorder
from ale.session.reply_format import ReplyForm
from ale.session.tokenizer import CHAT_TEMPLATE, byte_tokenizer
from ale.session.tool_formats import Hermes, Llama, QwenXML
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.tool_format import ReadReply, ToolFormat

TOOLS = (ToolSpec("shell", "Run.", {"type": "object", "properties": {"command": {"type": "string"}}}),)
FORMS = {
    name: ReplyForm(form(PluginConfig(), DriverContext()))
    for name, form in (("hermes", Hermes), ("llama", Llama), ("qwen_xml", QwenXML))
}
WORDS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="<{"), max_size=40).map(str.strip)
CALLS = st.lists(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=40).map(
        lambda command: ToolCall("", "shell", json.dumps({"command": command}, ensure_ascii=False))
    ),
    max_size=3,
).map(tuple)


def call(command: str) -> ToolCall:
    return ToolCall("c_0", "shell", json.dumps({"command": command}))


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=150, deadline=None)
@given(WORDS, WORDS, CALLS, st.booleans())
def test_what_is_written_is_read_again(
    name: str, thought: str, said: str, calls: tuple[ToolCall, ...], within: bool
) -> None:
    form = FORMS[name]
    if name == "llama" and calls:
        said = ""
    if name == "qwen_xml" and any("</parameter>" in c.arguments for c in calls):
        return
    message = Message("assistant", said, calls, reasoning=thought)
    read = form.read(form.write(message, within=within), "c", TOOLS, within=within)
    assert read.illegal is None
    assert read.message.reasoning == thought
    assert read.message.content == said
    assert [(c.name, json.loads(c.arguments)) for c in read.message.tool_calls] == [
        (c.name, json.loads(c.arguments)) for c in calls
    ]


@pytest.mark.parametrize(
    ("text", "within", "thought", "said"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, "hm", "yes"),
        ("\n<think>hm</think>yes", False, "hm", "yes"),
        ("hm\n</think>\nyes", True, "hm", "yes"),
        ("<think>\nhm", False, "hm", ""),
        ("hm", True, "hm", ""),
        ("yes </think> no", False, "", "yes </think> no"),
        ("yes <think>no</think>", False, "", "yes <think>no</think>"),
        ("<think></think>yes", False, "", "yes"),
    ],
)
def test_thoughts_stand_at_the_beginning(text: str, within: bool, thought: str, said: str) -> None:
    read = ReplyForm().read(text, "c", within=within)
    assert (read.message.reasoning, read.message.content) == (thought, said)


def test_without_marks_thoughts_are_text() -> None:
    text = "<think>hm</think>yes"
    assert ReplyForm(thoughts=None).read(text, "c").message == Message("assistant", text)


def test_a_call_in_a_thought_is_no_call() -> None:
    text = f"<think>{FORMS['hermes'].write(Message('assistant', '', (call('rm x'),)))}</think>no"
    read = ReplyForm().read(text, "c", TOOLS)
    assert (read.message.tool_calls, read.message.content) == ((), "no")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", 'Look: <tool_call>\n{"name": "shell", "argum'),
        ("hermes", "<tool_call>shell(ls)</tool_call>"),
        ("hermes", '<tool_call>{"name": "shell", "arguments": ["ls"]}</tool_call>'),
        ("llama", '{"name": "shell", "parameters": {"command": "l'),
        ("llama", '<|python_tag|>shell("ls")'),
        ("llama", '{"name": "shell", "parameters": {}} and so on'),
        ("qwen_xml", "<tool_call>\n<function=shell>\n<parameter=command>\nls\n</parameter>\n"),
        ("qwen_xml", "<tool_call>\n<function=shell>\nls\n</function>\n</tool_call>"),
    ],
)
def test_a_call_that_cannot_be_read_is_text_and_said_to_be_illegal(name: str, text: str) -> None:
    read = FORMS[name].read(text, "c", TOOLS)
    assert read.message == Message("assistant", text)
    assert read.illegal is not None
    assert read.illegal.endswith(".")


def test_tags_in_the_texts_of_a_call_are_its_own() -> None:
    made = call("echo '</tool_call><tool_call>'")
    read = FORMS["hermes"].read(FORMS["hermes"].write(Message("assistant", "", (made,))), "c", TOOLS)
    assert [c.arguments for c in read.message.tool_calls] == [made.arguments]


def test_values_of_qwens_tags_are_what_the_schema_says() -> None:
    tools = [ToolSpec("f", "", {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}})]
    text = (
        "<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n<parameter=s>\n3\n</parameter>\n"
        "<parameter=other>\n3\n</parameter>\n</function>\n</tool_call>"
    )
    (made,) = FORMS["qwen_xml"].read(text, "c", tools).message.tool_calls
    assert json.loads(made.arguments) == {"n": 3, "s": "3", "other": "3"}


def test_a_tool_format_that_crashes_is_named() -> None:
    class Broken(Driver, ToolFormat):
        def read(self, text: str, tools: object) -> ReadReply:
            return ReadReply(text[len(text) + 1])

        def write(self, content: str, calls: object) -> str:
            return content

    with pytest.raises(PluginError, match="The tool format Broken crashed: IndexError"):
        ReplyForm(Broken(PluginConfig(), DriverContext())).read("x", "c")


# --- templates


TALK = (
    Message("user", "go"),
    Message("assistant", "so", (call("ls"),)),
    Message("tool", "out", tool_call_id="c_0"),
)


def test_a_template_that_writes_tools_and_calls_is_given_them() -> None:
    for template in (CHAT_TEMPLATE, CHATML):
        tokenizer = with_template(template)
        assert ReplyForm().for_template(tokenizer, TALK, TOOLS) == (list(TALK), TOOLS)


@pytest.mark.parametrize("name", FORMS)
def test_a_model_whose_template_knows_no_tools_is_told_of_them(name: str) -> None:
    tokenizer, form = with_template(NUMBERED), FORMS[name]
    shown, told = form.for_template(tokenizer, TALK, TOOLS)
    assert told == ()
    assert shown[0].role == "system"
    assert "shell" in shown[0].content
    assert "command" in shown[0].content
    assert shown[2].content == form.tool_format.write("so", [call("ls")])
    assert shown[3] == Message("user", "out")
    with_system, _ = form.for_template(tokenizer, (Message("system", "Be brief."), *TALK), TOOLS)
    assert with_system[0].content.startswith("Be brief.\n\n")
    assert len(with_system) == len(TALK) + 1


def test_a_conversation_of_such_a_model_is_one_line_too() -> None:
    recorder = Recorder(with_template(NUMBERED), FORMS["hermes"])
    history = TALK[:1]
    first = recorder.add_unsampled(recorder.prompt(history, TOOLS), TALK[1])
    prompt = recorder.prompt(TALK, TOOLS)
    assert prompt.known is not None
    assert prompt.known.length == first.end
    told = byte_tokenizer().decode(prompt.token_ids[first.end :])
    assert told.startswith("<|im_start|>")
    assert "out" in told
