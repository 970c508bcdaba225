"""ROCK's own client (`rl-rock`) in a process of its own, which measures the time itself: `python sdk.py URL ID`.

A line on standard input, `[WHAT, COUNT]`, is answered by a line `ANSWER` with milliseconds, or with what failed. It is
no module of the benchmark: that is called `rock` as the client's package is.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from rock.actions import CloseBashSessionRequest, Command, CreateBashSessionRequest, UploadRequest
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig

MIB = 1 << 20


class Client:
    """Does the same in `count` places at once."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box, self.folder, self.made = box, folder, 0
        (folder / "file").write_bytes(bytes(MIB))

    async def open(self, count: int) -> None:
        """Open sessions for `run`."""
        await asyncio.gather(*(self._create(f"sdk-{i}") for i in range(count)))

    async def create(self, count: int) -> float:
        self.made += 1
        names = [f"sdk-{self.made}-{i}" for i in range(count)]
        began = time.perf_counter()
        await asyncio.gather(*(self._create(name) for name in names))
        took = time.perf_counter() - began
        await asyncio.gather(*(self.box.close_session(CloseBashSessionRequest(session=name)) for name in names))
        return took

    async def _create(self, name: str) -> None:
        await self.box.create_session(CreateBashSessionRequest(session=name))

    async def run(self, count: int) -> float:
        began = time.perf_counter()
        done = await asyncio.gather(*(self.box.arun("true", session=f"sdk-{i}") for i in range(count)))
        took = time.perf_counter() - began
        assert [each.exit_code for each in done] == [0] * count, done
        return took

    async def execute(self, count: int) -> float:
        began = time.perf_counter()
        done = await asyncio.gather(*(self.box.execute(Command(command=["true"])) for _ in range(count)))
        took = time.perf_counter() - began
        assert [each.exit_code for each in done] == [0] * count, done
        return took

    async def upload(self, count: int) -> float:
        source = str(self.folder / "file")
        asked = [UploadRequest(source_path=source, target_path=f"/tmp/sdk-{i}") for i in range(count)]
        began = time.perf_counter()
        done = await asyncio.gather(*(self.box.upload(each) for each in asked))
        took = time.perf_counter() - began
        assert all(each.success for each in done), done
        return took


async def main(url: str, sandbox_id: str) -> None:
    """Answer until standard input is closed."""
    box = Sandbox(SandboxConfig(base_url=url))
    await box.attach(sandbox_id)
    with tempfile.TemporaryDirectory(prefix="ale-bench-") as folder:
        client = Client(box, Path(folder))
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, count = json.loads(line)
            try:
                answer: float | str = (await getattr(client, what)(count) or 0.0) * 1e3
            except Exception as error:  # what fails in the client is a result
                answer = f"{type(error).__name__}: {error}"
            print("ANSWER" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
