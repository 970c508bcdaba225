"""Downloads a model in a process of its own, which a cancelled run can end at once; threads could not be.

`python -m ale_train.models.download` reads one line of JSON (name, revision, files), downloads into the local cache,
and prints one line: the folder, or the sentence of what went wrong. It ends when its input does, so that it does not go
on after a run that was killed. The library goes on where an interrupted download was.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ale.errors import ConfigError
from ale_train.models.hub import as_sentence

PROGRESS_S = 10.0
"""Seconds between two notes about how far a download is."""


async def download_model(
    name: str, revision: str | None, files: Sequence[str], size: int, show: Callable[[str], None]
) -> Path:
    """Download the files (`size` bytes in all) of a model, and return their folder. Raises `ConfigError`."""
    before = _bytes_in_cache(name)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ale_train.models.download",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # the library's bars, which would tear the run's display
    )
    assert process.stdin is not None
    assert process.stdout is not None
    reading = asyncio.ensure_future(process.stdout.read())
    try:
        process.stdin.write(json.dumps({"name": name, "revision": revision, "files": list(files)}).encode() + b"\n")
        while not (await asyncio.wait({reading}, timeout=PROGRESS_S))[0]:
            done = await asyncio.to_thread(_bytes_in_cache, name) - before
            show(f"{name}: {_megabytes(min(done, size))} of {_megabytes(size)} MB")
        answer = json.loads(reading.result() or b"{}")
    except BaseException:
        reading.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        raise
    finally:
        await process.wait()
    if "folder" not in answer:
        ended = f"its process ended with {process.returncode}"
        raise ConfigError(answer.get("error") or f"model.path: the download of {name} broke off: {ended}; try again.")
    return Path(answer["folder"])


def _bytes_in_cache(name: str) -> int:
    from huggingface_hub import constants

    blobs = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "blobs"
    total = 0
    for path in blobs.glob("*"):
        with contextlib.suppress(OSError):  # it was renamed meanwhile
            total += path.stat().st_size
    return total


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f}"


def main() -> None:
    """Download what the first line of the input names."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    from huggingface_hub import snapshot_download

    try:
        name, revision = request["name"], request["revision"]
        with as_sentence(name, revision):
            # Not by its commit: the cache would then not know that the branch is here.
            folder = snapshot_download(name, revision=revision, allow_patterns=request["files"])
    except ConfigError as error:
        print(json.dumps({"error": str(error)}))
    else:
        print(json.dumps({"folder": folder}))


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
