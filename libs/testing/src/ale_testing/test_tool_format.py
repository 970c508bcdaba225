"""These tests check that a tool format reads a call as it was meant or reports it as unreadable, and loses no text."""

from __future__ import annotations

import json
import random

from ale.messages import ToolCall, ToolSpec
from ale.specs.tool_format import FoundCall, ReadReply, ToolFormat
from ale_testing.async_tests import async_test
from ale_testing.plugin_under_test import Subject

TOOLS = (
    ToolSpec("shell", "Runs a command.", {"type": "object", "properties": {"command": {"type": "string"}}}),
    ToolSpec(
        "edit",
        "Changes a file.",
        {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "lines": {"type": "array"},
                "all": {"type": "boolean"},
                "at": {"type": "integer"},
                "how": {"type": "object"},
                "share": {"type": "number"},
            },
        },
    ),
)
Made = tuple[str, dict[str, object]]
CALLS: tuple[Made, ...] = (
    ("shell", {"command": "ls -la"}),
    ("shell", {"command": 'cat <<\'X\'\n{"a": [1, 2]}\n\n  größe ✓ \U0001f600 </b> & \\n "quoted"\nX'}),
    ("shell", {"command": ""}),
    ("shell", {"command": "12"}),
    ("shell", {}),
    (
        "edit",
        {"path": "a b/ü.py", "lines": ["x", {"y": None}], "all": True, "at": -3, "how": {"a": {"b": []}}, "share": 0.5},
    ),
)
PROSE = (
    "",
    "I am done.",
    "größe ✓ \U0001f600 日本語",
    "a < b and c > d",
    "x = {'a': 1}",
    "[1, 2, 3]",
    "  leading and trailing  ",
    "<b>bold</b>",
    "```python\nprint({})\n```",
    '{"answer": 42}',
    "\x00\u202e",
)


def calls_of(*made: Made) -> list[ToolCall]:
    """Calls as messages hold them."""
    return [ToolCall(f"c{i}", name, json.dumps(given, ensure_ascii=False)) for i, (name, given) in enumerate(made)]


def meant(calls: tuple[FoundCall, ...]) -> list[tuple[str, object]]:
    """Calls by what they say."""
    return [(call.name, json.loads(call.arguments)) for call in calls]


async def reading(form: ToolFormat, text: str) -> ReadReply | None:
    """What is read; None where it says that it cannot be."""
    refused = ""
    try:
        read = form.read(text, TOOLS)
    except ValueError as error:
        refused = str(error).strip() or "nothing"
    if refused:
        assert refused.endswith("."), f"a ValueError of read() must be a sentence, for the model, not {refused}"
        return None
    for call in read.calls:
        given = json.loads(call.arguments)
        assert isinstance(given, dict), f"FoundCall.arguments must be the JSON text of an object, not {call.arguments}"
    return read


@async_test
async def test_written_calls_are_read_back_unchanged(subject: Subject) -> None:
    async with subject.build() as form:
        for call in CALLS:
            text = form.write("", calls_of(call))
            read = await reading(form, text)
            assert read is not None, f"read() must read what write() wrote: {text!r}"
            assert meant(read.calls) == [call], (
                f"read() must give the call that write() was given; the text is {text!r}"
            )
            assert not read.content.strip(), f"beside the call there was no content, and read() found {read.content!r}"


@async_test
async def test_several_calls_keep_their_order(subject: Subject) -> None:
    async with subject.build() as form:
        read = await reading(form, form.write("", calls_of(*CALLS)))
        assert read is not None
        assert meant(read.calls) == list(CALLS)


@async_test
async def test_text_without_calls_is_content_to_the_letter(subject: Subject) -> None:
    async with subject.build() as form:
        for text in PROSE:
            assert form.write(text, []) == text, "a reply without calls is written as its content"
            read = await reading(form, text)
            assert read == ReadReply(text), f"what is no call must be content, unchanged: {text!r} became {read}"


@async_test
async def test_content_beside_calls_is_kept_or_left_out_whole(subject: Subject) -> None:
    async with subject.build() as form:
        read = await reading(form, form.write("Let me look.", calls_of(CALLS[0])))
        assert read is not None
        assert meant(read.calls) == [CALLS[0]]
        assert read.content.strip() in ("Let me look.", "")


@async_test
async def test_a_reply_that_was_cut_is_never_read_as_another_call(subject: Subject) -> None:
    async with subject.build() as form:
        whole = [CALLS[1], CALLS[5], CALLS[0]]
        text = form.write("", calls_of(*whole))
        for end in range(len(text)):
            read = await reading(form, text[:end])
            found = meant(read.calls) if read is not None else []
            assert found == whole[: len(found)], (
                f"the first {end} characters were read as {found}; the text is {text!r}"
            )


@async_test
async def test_any_text_of_a_model_is_read_or_refused(subject: Subject) -> None:
    rng = random.Random(1)
    async with subject.build() as form:
        text = form.write("So:", calls_of(CALLS[1], CALLS[5]))
        for _ in range(2000):
            spoiled = list(text)
            for _ in range(rng.randrange(1, 6)):
                at = rng.randrange(len(spoiled))
                spoiled[at : at + rng.randrange(4)] = rng.choice(
                    ["", "x", '"', "{", "}", "<", ">", "\n", "\\", "\ud800", "=", "/"]
                )
            await reading(form, "".join(spoiled))
        await reading(form, "[" * 100_000)
        await reading(form, text.replace("{", "{" * 50_000, 1))


@async_test
async def test_reading_long_texts_does_not_stall(subject: Subject) -> None:
    import time

    async with subject.build() as form:
        text = form.write("", calls_of(CALLS[0]))
        opening = text[: text.find("shell")]
        began = time.perf_counter()
        for hostile in (opening * 20_000, text * 5_000, opening + " " * 500_000, opening + "\n" * 500_000):
            await reading(form, hostile)
        took = time.perf_counter() - began
        assert took < 20, (
            f"texts of up to a megabyte took {took:.0f} s to read: what a model samples must not stall a run"
        )


@async_test
async def test_tools_can_be_described_to_a_model(subject: Subject) -> None:
    async with subject.build() as form:
        told = form.describe(TOOLS)
        for tool in TOOLS:
            assert tool.name in told
            assert tool.description in told
        assert all(name in told for name in TOOLS[1].parameters["properties"])


@async_test
async def test_earlier_reads_do_not_change_later_ones(subject: Subject) -> None:
    async with subject.build() as form:
        text = form.write("", calls_of(CALLS[5]))
        first = await reading(form, text)
        await reading(form, text[: len(text) // 2])
        await reading(form, "prose")
        assert await reading(form, text) == first, "what was read before must not change what is read"
