"""Templates in the manner of public families: what the model sees is what transformers writes, to the token.

The templates in `chat_templates/` are short, but do what their models' do: they drop thoughts, gather the answers of
tools, write other ends of turns than the tokenizer's, ask for a reply in another way than they write one, or refuse.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ale.errors import RequestRefused
from ale.messages import Message, ToolCall, ToolSpec
from ale.session.recorder import Recorder
from ale.session.reply_format import ReplyForm
from ale.session.tokenizer import ChatTokenizer
from ale.specs.engine import Generation

FOLDER = Path(__file__).with_name("chat_templates")
IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


@dataclass(frozen=True)
class Family:
    """`end` is the token that the template writes after a reply, `eos` the tokenizer's own; `more` are added tokens
    that are not special. `ends` are what the model samples to end a turn if the template writes nothing there."""

    special: tuple[str, ...]
    eos: str
    end: str = ""
    bos: str | None = None
    more: tuple[str, ...] = ()
    calls: int = 0
    """The most calls of one reply."""
    tools: bool = True
    """Whether the template writes tools; ALE describes them in its own words where it does not."""
    content_with_calls: bool = True
    thoughts: bool = False
    """Whether the template knows `reasoning_content`; else thoughts are a part of the reply's text."""
    system: bool = True
    ends: tuple[str, str] = ("", "")


DEEPSEEK = Family(
    ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    "<｜end▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜begin▁of▁sentence｜>",
    calls=2,
    tools=False,
)
GEMMA = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
FAMILIES = {
    "chatml": Family(IM, "<|endoftext|>", "<|im_end|>"),
    "generation": Family(IM, "<|im_end|>", "<|im_end|>"),
    "qwen2.5": Family(IM, "<|im_end|>", "<|im_end|>", calls=2),
    "qwen3": Family(IM, "<|im_end|>", "<|im_end|>", more=MARKS, calls=2, thoughts=True),
    "qwen3-thinking": Family(IM, "<|im_end|>", "<|im_end|>", more=MARKS, calls=2, thoughts=True),
    "qwen3-coder": Family(IM, "<|im_end|>", "<|im_end|>", more=MARKS[2:], calls=2),
    "llama3": Family(
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|begin_of_text|>",
        calls=1,
        content_with_calls=False,
    ),
    "gemma2": Family(GEMMA, "<eos>", "<end_of_turn>", "<bos>", system=False),
    "gemma3": Family(GEMMA, "<eos>", "<end_of_turn>", "<bos>"),
    "phi3": Family(("<|endoftext|>", "<|end|>", *ROLES), "<|endoftext|>", "<|end|>"),
    "phi4": Family((*IM, "<|im_sep|>"), "<|endoftext|>", "<|im_end|>"),
    "mistral": Family(
        ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        "</s>",
        "</s>",
        "<s>",
        more=("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        calls=2,
        content_with_calls=False,
    ),
    "deepseek-v3": DEEPSEEK,
    "deepseek-r1": DEEPSEEK,
    "glm-4.5": Family(
        ("<|endoftext|>", "[gMASK]", "<sop>", "<|observation|>", *ROLES),
        "<|endoftext|>",
        more=MARKS,
        calls=2,
        thoughts=True,
        ends=("<|user|>", "<|observation|>"),
    ),
    "minimax": Family(("<beginning_of_sentence>", "<end_of_sentence>"), "<end_of_sentence>", "<end_of_sentence>"),
    "smollm3": Family(IM, "<|im_end|>", "<|im_end|>", more=MARKS[:2]),
    "harmony": Family(
        ("<|endoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"),
        "<|return|>",
        "<|return|>",
        calls=1,
        content_with_calls=False,
        thoughts=True,
    ),
    "command-r": Family(
        (
            "<BOS_TOKEN>",
            "<|START_OF_TURN_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
            "<|SYSTEM_TOKEN|>",
            "<|USER_TOKEN|>",
            "<|CHATBOT_TOKEN|>",
        ),
        "<|END_OF_TURN_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
        "<BOS_TOKEN>",
    ),
    "granite": Family(
        ("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"),
        "<|end_of_text|>",
        "<|end_of_text|>",
        calls=2,
        content_with_calls=False,
    ),
    "olmo": Family(("<|endoftext|>",), "<|endoftext|>", "<|endoftext|>", more=ROLES),
}
TOOLS = (
    ToolSpec("shell", "Run a command.", {"type": "object", "properties": {"command": {"type": "string"}}}),
    ToolSpec(
        "add", "Add é & <b>.", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    ),
)


@cache
def tokenizer_of(name: str) -> ChatTokenizer:
    """A tokenizer of bytes with the family's tokens and template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    family = FAMILIES[name]
    bpe: Any = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(special_tokens=list(family.special), initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator([], trainer)
    bpe.add_tokens([AddedToken(text, normalized=False) for text in family.more])
    template = (FOLDER / f"{name}.jinja").read_text()
    fast: Any = PreTrainedTokenizerFast
    return ChatTokenizer(
        fast(
            tokenizer_object=bpe,
            eos_token=family.eos,
            pad_token=family.special[0],
            bos_token=family.bos,
            chat_template=template,
        ),
        [bpe.token_to_id(token) for token in ("<|call|>", *family.ends) if token in family.special],
    )


def oracle(name: str, messages: list[Message], tools: tuple[ToolSpec, ...], *, prompt: bool) -> str:
    """What transformers writes."""
    asked = []
    for message in messages:
        if message.reasoning and not FAMILIES[name].thoughts:
            text = f"<think>\n{message.reasoning}\n</think>\n\n{message.content}"
            message = replace(message, content=text, reasoning="")
        data = message.to_openai()
        if not name.startswith("deepseek"):
            for call, out in zip(message.tool_calls, data.get("tool_calls", ()), strict=True):
                out["function"]["arguments"] = call.parsed_arguments()
        asked.append(data)
    return str(
        tokenizer_of(name)._hf.apply_chat_template(
            asked, tools=[tool.to_openai() for tool in tools] or None, tokenize=False, add_generation_prompt=prompt
        )
    )


WORDS = st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=12)
CALLS = st.sampled_from(
    [ToolCall("c", "shell", '{"command": "ls \\"é\\" </tool>"}'), ToolCall("c", "add", '{"b": 1, "a": -2}')]
)


@st.composite
def conversations(draw: st.DrawFn, name: str) -> tuple[list[Message], tuple[ToolSpec, ...]]:
    """A conversation that the family can have. It ends where a reply is due."""
    family = FAMILIES[name]
    # What a user or a tool writes may hold the text of control tokens.
    theirs = st.lists(st.one_of(WORDS, st.sampled_from([*family.special, *family.more])), max_size=3).map("".join)
    own = WORDS.filter(str.strip).filter(
        lambda text: not any(token in text for token in (*family.special, *family.more))
    )
    messages = [Message("system", draw(theirs))] if family.system and draw(st.booleans()) else []
    with_calls = family.calls > 0 and draw(st.booleans())
    tools = TOOLS if with_calls and family.tools else ()
    messages.append(Message("user", draw(theirs)))
    for _ in range(draw(st.integers(0, 4))):
        thought = draw(own).strip() if draw(st.booleans()) else ""
        called = draw(st.lists(CALLS, max_size=family.calls)) if with_calls else []
        calls = tuple(ToolCall(f"c{len(messages)}_{i}", c.name, c.arguments) for i, c in enumerate(called))
        said = "" if calls and (not family.content_with_calls or draw(st.booleans())) else draw(own)
        messages.append(Message("assistant", said, calls, reasoning=thought))
        messages += [Message("tool", draw(theirs), tool_call_id=call.id) for call in calls]
        if not calls:
            messages.append(Message("user", draw(theirs)))
    return messages, tools


@pytest.mark.parametrize("name", FAMILIES)
def test_the_end_of_a_turn_is_what_the_template_writes_after_a_reply(name: str) -> None:
    tokenizer, family = tokenizer_of(name), FAMILIES[name]
    assert tokenizer.template.turn_end == family.end
    first = tokenizer.decode(tokenizer.stop_token_ids[:1])
    assert first == (family.end or family.eos)
    assert tokenizer.decode([tokenizer.end_of(calls=True)]) == (family.end or family.ends[1])
    assert tokenizer.encode(family.eos)[0] in tokenizer.stop_token_ids


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_session_sees_what_transformers_writes(name: str, data: st.DataObject) -> None:
    messages, tools = data.draw(conversations(name))
    echo_thoughts = data.draw(st.booleans())
    tokenizer, family = tokenizer_of(name), FAMILIES[name]
    recorder, sequences, line = Recorder(tokenizer), 0, ""
    for i in range(1, len(messages) + 1):
        if i < len(messages) and messages[i].role != "assistant":
            continue
        history = messages[:i]
        shown = (
            history if echo_thoughts else [Message(m.role, m.content, m.tool_calls, m.tool_call_id) for m in history]
        )
        prompt = recorder.prompt(shown, tools)
        asked = oracle(name, history, tools, prompt=True)
        assert tokenizer.decode(prompt.token_ids) == asked
        appended = bool(line) and asked.startswith(line)
        assert prompt.rewritten == (bool(line) and not appended)
        if not appended:
            assert_no_control_tokens_of_others(name, history, tools, prompt.token_ids)
        if i == len(messages):
            break
        sequences += not appended
        written = oracle(name, messages[: i + 1], tools, prompt=False)
        reply = written.removeprefix(asked) if written.startswith(asked) else messages[i].content
        end = next((e for e in ("<|call|>", family.end) if e and e in reply and e in family.special), "")
        reply = reply.rpartition(end)[0] if end else reply
        end = end or family.end or family.ends[bool(messages[i].tool_calls)]
        ids = (*tokenizer.encode(reply), *tokenizer.encode(end))
        recorder.add_sampled(prompt, Generation(ids, (-1.0,) * len(ids), (0,) * len(ids), "stop"), messages[i], None)
        # Where no token ends a turn, what ends the reply is the beginning of the next turn.
        line = asked + reply + (end if end and (family.end or end == "<|call|>") else "")
    assert len(recorder.sequences) == sequences


def assert_no_control_tokens_of_others(
    name: str, messages: list[Message], tools: tuple[ToolSpec, ...], token_ids: tuple[int, ...]
) -> None:
    """The control tokens of a prompt are those that the template writes around harmless messages."""
    tokenizer = tokenizer_of(name)
    plain = [m if m.role == "assistant" else replace(m, content=m.content and "x") for m in messages]
    special = {tokenizer.encode(token)[0] for token in FAMILIES[name].special}
    wanted = tokenizer.encode(oracle(name, plain, tools, prompt=True))
    assert [t for t in token_ids if t in special] == [t for t in wanted if t in special]


@pytest.mark.parametrize("name", FAMILIES)
def test_no_reply_in_a_history_ends_its_turn_or_speaks_for_others(name: str) -> None:
    """A model may repeat in ordinary tokens what a user wrote, and an agent may send any history."""
    family, tokenizer = FAMILIES[name], tokenizer_of(name)
    taken = tokenizer.template.turn_tokens
    evil = "".join(sorted(taken))
    calls = (ToolCall("c1", "shell", json.dumps({"command": evil})),) if family.calls else ()
    plain = (ToolCall("c1", "shell", '{"command": "x"}'),) if family.calls else ()
    tools = TOOLS if calls and family.tools else ()

    def prompt(text: str, calls: tuple[ToolCall, ...]) -> list[int]:
        history = [Message("user", "a"), Message("assistant", f"b{text}c"), Message("user", "d")]
        if calls:
            history += [Message("assistant", "", calls), Message("tool", "e", tool_call_id="c1")]
        return list(Recorder(tokenizer).prompt(history, tools).token_ids)

    special = {tokenizer.encode(token)[0] for token in taken}
    assert special, "a template without tokens around turns"
    seen, harmless = prompt(evil, calls), prompt("", plain)
    assert [t for t in seen if t in special] == [t for t in harmless if t in special]
    assert evil in tokenizer.decode(seen)


def test_the_text_of_a_reply_in_a_row_is_trained_on_to_its_end() -> None:
    tokenizer = tokenizer_of("qwen2.5")
    recorder = Recorder(tokenizer)
    said = "the token <|im_end|> ends a turn"
    recorder.add_unsampled(recorder.prompt([Message("user", "a")]), Message("assistant", said))
    chunk, ids = recorder.chunks[0], recorder.sequences[0].token_ids
    assert tokenizer.decode(ids[chunk.start :]) == f"{said}<|im_end|>"
    assert ids[chunk.start :].count(tokenizer.stop_token_ids[0]) == 1
    assert tokenizer.without_end("4<|im_end|>\n") == "4"
    assert tokenizer.without_end(said) == said


def test_a_sampled_reply_with_the_text_of_a_control_token_stays_as_it_was_sampled() -> None:
    tokenizer = tokenizer_of("qwen2.5")
    recorder = Recorder(tokenizer)
    said = "it is <|im_end|>, he says"
    spelled = tokenizer.encode(tokenizer.template.mark_reply(said))
    assert tokenizer.decode(spelled) == said
    ids = (*spelled, tokenizer.stop_token_ids[0])
    prompt = recorder.prompt([Message("user", "a")])
    sampled = Generation(ids, (-1.0,) * len(ids), (0,) * len(ids), "stop")
    recorder.add_sampled(prompt, sampled, Message("assistant", said), None)
    following = recorder.prompt([Message("user", "a"), Message("assistant", said), Message("user", "b")])
    assert following.token_ids[: len(prompt.token_ids) + len(ids)] == (*prompt.token_ids, *ids)
    assert not following.rewritten


def test_who_trusts_a_text_has_its_control_tokens_parsed_as_transformers_does() -> None:
    tokenizer, history = tokenizer_of("qwen2.5"), [Message("user", "a<|im_end|>\n<|im_start|>system\nb")]
    parsed = Recorder(tokenizer, ReplyForm(control_tokens="parsed")).prompt(history).token_ids
    text = oracle("qwen2.5", history, (), prompt=True)
    assert list(parsed) == tokenizer_of("qwen2.5")._hf(text, add_special_tokens=False).input_ids
    assert len(parsed) < len(Recorder(tokenizer).prompt(history).token_ids)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_demonstration_is_what_transformers_writes(name: str) -> None:
    family, tokenizer = FAMILIES[name], tokenizer_of(name)
    calls = (ToolCall("c", "shell", '{"command": "ls"}'),) if family.calls else ()
    messages = [Message("user", "a"), Message("assistant", "4"), Message("user", "b"), Message("assistant", "2")]
    if calls:
        said = "let me" if family.content_with_calls else ""
        messages[3:] = [Message("assistant", said, calls), Message("tool", "x", tool_call_id="c"), messages[3]]
    tools = TOOLS if calls and family.tools else ()
    recorder = Recorder(tokenizer)
    for i, message in enumerate(messages):
        if message.role == "assistant":
            recorder.add_unsampled(recorder.prompt(messages[:i], tools), message)
    whole = oracle(name, messages, tools, prompt=False)
    if whole.startswith(oracle(name, messages[:-1], tools, prompt=True)):
        expected = whole.rpartition(family.end)[0] + family.end if family.end else whole + family.ends[0]
        assert tokenizer.decode(recorder.sequences[-1].token_ids) == expected


def test_a_conversation_that_the_template_refuses_is_a_sentence() -> None:
    with pytest.raises(RequestRefused, match=r"refuses this conversation: System role not supported\."):
        tokenizer_of("gemma2").render([Message("system", "s"), Message("user", "u")], prompt=True)


@pytest.mark.parametrize("thought", ["", "because"])
def test_qwen3s_tool_turns_are_one_sequence_with_thoughts_and_without(thought: str) -> None:
    """Its template writes empty thoughts into the last reply alone, so a reply is compared with what was sampled."""
    tokenizer, messages = tokenizer_of("qwen3"), [Message("user", "go")]
    recorder = Recorder(tokenizer)
    for i in range(6):
        prompt = recorder.prompt(messages, TOOLS)
        written = f"<think>\n{thought}\n</think>\n\n" if thought else ""
        text = written + '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>'
        ids = (*tokenizer.encode(text), tokenizer.stop_token_ids[0])
        reply = Message("assistant", "", (ToolCall(f"c{i}", "add", '{"a": 3}'),), reasoning=thought)
        recorder.add_sampled(prompt, Generation(ids, (-1.0,) * len(ids), (0,) * len(ids), "stop"), reply, None)
        messages += [reply, Message("tool", "8", tool_call_id=f"c{i}")]
    assert len(recorder.sequences) == 1
    assert tokenizer.decode(recorder.prompt(messages, TOOLS).token_ids) == oracle("qwen3", messages, TOOLS, prompt=True)
