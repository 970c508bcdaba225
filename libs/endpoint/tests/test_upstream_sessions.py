"""Each key is a session of its own in front of another server's model, and its calls are counted in the recording."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from served_upstream import GO, World, served

from ale_endpoint.forwarding import Forwarding
from ale_endpoint.recording import Recording, read_recording
from ale_endpoint.replay import Replay


async def test_keys_of_agents_are_kept_as_hashes_and_none_is_a_session_too(world: World) -> None:
    world.engine.texts = ["a", "b", "c"]
    await (await world.chat("secret-of-an-agent")).chat.completions.create(model="m", messages=GO)
    async with httpx.AsyncClient(trust_env=False) as plain:
        url = f"{world.origin}/v1/chat/completions"
        assert (await plain.post(url, json={"messages": GO})).status_code == 200
        page = await plain.post(url, json={"messages": GO}, headers={"Origin": "https://elsewhere.example"})
        assert page.status_code == 401, "a web page speaks for nobody"
    sessions = [c.session for c in world.calls()]
    assert sessions[0].startswith("s-")
    assert sessions[1] == "anonymous"
    assert "secret-of-an-agent" not in world.path.read_text()
    assert world.key not in world.path.read_text()


async def test_a_required_key_opens_a_session_for_each_name(world: World) -> None:
    forwarding = Forwarding(None, Replay([]), required_key="the-key")
    opened = [forwarding.by_key(key) for key in ("the-key", "the-key:one", "the-key:two")]
    assert len({session.id for session in opened if session is not None}) == 3
    for key in ("", "the-ke", "the-keys", "the-key-one", "other", "thé-key"):
        assert forwarding.by_key(key) is None, key


async def test_many_agents_at_once_are_told_apart(world: World) -> None:
    engine = world.engine
    engine.texts = [f"answer {i}" for i in range(40)]

    async def one(name: int) -> str | None:
        chat = await world.chat(f"agent-{name % 8}")
        made = await chat.chat.completions.create(model="m", messages=[{"role": "user", "content": f"go {name}"}])
        return made.choices[0].message.content

    said = await asyncio.gather(*(one(i) for i in range(40)))
    assert len(set(said)) == 40
    recorded = world.calls()
    assert {(c.session, c.number) for c in recorded} == {
        (session, number) for session in {c.session for c in recorded} for number in range(5)
    }
    by_request = {c.request.messages[0].content: c.answer.replies[0].message.content for c in recorded if c.answer}
    assert [by_request[f"go {i}"] for i in range(40)] == said


async def test_sessions_go_on_counting_in_a_recording_that_goes_on(world: World, tmp_path: Path) -> None:
    path = tmp_path / "more.jsonl"
    for texts in (["a", "b"], ["c"]):
        world.engine.texts = texts[:]
        with Recording(path) as recording:
            async with served(Forwarding(world.forwarding._source, recording=recording)) as origin:
                chat = await world.chat("same", origin)
                for _ in texts:
                    await chat.chat.completions.create(model="m", messages=GO)
    assert [c.number for c in read_recording(path)] == [0, 1, 2]
