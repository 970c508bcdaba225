"""The scripted engine: each source of answers, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ale.errors import ConfigError, EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import GenerateRequest, Sampling
from ale_engines.scripted import ScriptedEngine

TOKENIZER = byte_tokenizer()


async def say(engine: ScriptedEngine, session: str = "s", call: int = 0, max_tokens: int = 99) -> str:
    request = GenerateRequest(tuple(TOKENIZER.encode("prompt")), Sampling(max_tokens=max_tokens), session, call)
    return TOKENIZER.decode((await engine.generate(request)).token_ids)


async def make(**config: Any) -> ScriptedEngine:
    engine = ScriptedEngine(ScriptedEngine.Config(**config), DriverContext(seed=3))
    await engine.load_model(None, TOKENIZER)
    return engine


async def test_a_list_is_gone_through_call_by_call_and_its_end_repeated() -> None:
    engine = await make(answers=["a", "b"])
    assert [await say(engine, call=i) for i in range(3)] == ["a<|im_end|>", "b<|im_end|>", "b<|im_end|>"]


async def test_an_engine_that_closes_while_it_answers_says_so() -> None:
    for source in ({"answers": ["a"]}, {"random": True}):
        engine = await make(**source, latency_s=0.05)
        answering = asyncio.ensure_future(say(engine))
        await asyncio.sleep(0.01)
        await engine.close()
        with pytest.raises(EngineError, match="it is closed"):
            await answering


async def test_answers_at_the_same_time_are_busy_once() -> None:
    engine = await make(answers=["a"], latency_s=0.2)
    began = time.perf_counter()
    await asyncio.gather(*(say(engine, session=str(i)) for i in range(8)))
    assert 0.19 < engine.metrics()["busy_s"] <= time.perf_counter() - began


async def test_a_long_answer_is_cut_like_a_models() -> None:
    engine = await make(answers=["abcdef"])
    generation = await engine.generate(GenerateRequest((1,), Sampling(max_tokens=3)))
    assert (len(generation.token_ids), generation.finish_reason) == (3, "length")
    assert generation.logprobs == (0.0,) * 3


async def test_a_function_sees_session_call_and_prompt(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("async def reply(c):\n    return f'{c.session} {c.call} {c.prompt}'\n")
    engine = await make(function=f"{file}:reply")
    assert await say(engine, session="x", call=2) == "x 2 prompt<|im_end|>"


async def test_a_function_that_raises_or_returns_no_text_is_an_engine_error(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def boom(c):\n    raise KeyError('k')\ndef three(c):\n    return 3\n")
    with pytest.raises(EngineError, match="raised KeyError"):
        await say(await make(function=f"{file}:boom"))
    with pytest.raises(EngineError, match="must return a text, not int"):
        await say(await make(function=f"{file}:three"))


async def test_sessions_take_the_recorded_conversations_in_turn(tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    file.write_text("\n".join(json.dumps(c) for c in (["a", "b"], ["c"])))
    engine = await make(recording=file)
    said = [await say(engine, s, c) for s, c in (("x", 0), ("y", 0), ("x", 1), ("z", 0))]
    assert [t.removesuffix("<|im_end|>") for t in said] == ["a", "c", "b", "a"]


async def test_an_end_text_follows_when_the_answers_are_used_up() -> None:
    engine = await make(answers=["a", "b"], end="over")
    assert [await say(engine, call=i) for i in range(1, 4)] == ["b<|im_end|>", "over<|im_end|>", "over<|im_end|>"]


async def test_a_json_recording_is_a_list_or_goes_by_session(tmp_path: Path) -> None:
    listed, keyed = tmp_path / "list.json", tmp_path / "keyed.json"
    listed.write_text(json.dumps([["a"], ["b"]]))
    keyed.write_text(json.dumps({"x": ["a"], "y": ["b"]}))
    assert await say(await make(recording=listed), "any") == "a<|im_end|>"
    engine = await make(recording=keyed)
    assert await say(engine, "y") == "b<|im_end|>"
    with pytest.raises(EngineError, match="no conversation 'z'"):
        await say(engine, "z")


async def test_a_context_that_is_full_is_an_engine_error_and_a_nearly_full_one_cuts() -> None:
    engine = await make(answers=["abcdef"], max_context=10)
    assert len((await engine.generate(GenerateRequest((1,) * 8, Sampling()))).token_ids) == 2
    with pytest.raises(EngineError, match="context of 10"):
        await engine.generate(GenerateRequest((1,) * 10, Sampling()))
    metrics = engine.metrics()
    assert (metrics["requests"], metrics["prompt_tokens"], metrics["sampled_tokens"]) == (1, 8, 2)


async def test_latency_delays_but_does_not_queue() -> None:
    engine = await make(answers=["a"], latency_s=0.2)
    began = time.perf_counter()
    await asyncio.gather(*(say(engine, f"{i}") for i in range(200)))
    assert 0.2 <= time.perf_counter() - began < 200 * 0.2


async def test_noise_is_reproducible_and_says_how_likely_it_was() -> None:
    one, two = await make(random=True), await make(random=True)
    assert [await say(one, call=i) for i in range(5)] == [await say(two, call=i) for i in range(5)]
    generation = await one.generate(GenerateRequest((1,), Sampling(max_tokens=9)))
    assert all(p == pytest.approx(-math.log(TOKENIZER.vocab_size)) for p in generation.logprobs)


@pytest.mark.parametrize(
    "config", [{}, {"answers": ["a"], "random": True}, {"answers": []}, {"random": True, "end": "x"}]
)
def test_exactly_one_source_is_needed(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ScriptedEngine.Config(**config)


@pytest.mark.parametrize(
    "config",
    [{"recording": "nowhere.jsonl"}, {"function": "nocolon"}, {"function": "no.such:f"}, {"function": "json:nothing"}],
)
def test_what_cannot_be_loaded_is_a_sentence(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^engine\."):
        ScriptedEngine(ScriptedEngine.Config(**config), DriverContext())
