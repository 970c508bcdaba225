"""The model of a run: a folder, or a name on the hub that becomes a folder of the local cache when the run starts."""

from __future__ import annotations

import asyncio
import difflib
import re
from contextlib import suppress
from pathlib import Path

from ale.errors import ConfigError
from ale.specs.driver import Channel
from ale_train.models.download import download_model
from ale_train.models.hub import find_cached, find_on_hub
from ale_train.models.model_files import find_missing_in

NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
"""The owner and the repository, such as `Qwen/Qwen2.5-0.5B-Instruct`."""


def check_model(path: Path, revision: str | None) -> Path | None:
    """Refuse what is no whole model, or not open to the user; nothing is downloaded. Return the model's folder, or None
    if it is yet to be downloaded. Raises `ConfigError`."""
    folder = _find_here(path, revision)
    if folder is None:
        try:
            find_on_hub(str(path), revision)
        except ConfigError as error:
            raise ConfigError(f"{error}{_nearest(path)}") from error
        return None
    if folder == path and revision is not None:
        raise ConfigError(f"model.revision: model.path is the folder {path}, which has no revisions; leave it out.")
    if missing := find_missing_in(folder):
        raise ConfigError(
            f"model.path: {folder} is no whole model: it lacks {', '.join(missing)}. Save model and tokenizer "
            "there with `save_pretrained` of transformers (a base model has no chat template: add the file), or "
            "name another one."
        )
    return folder


async def fetch_model(path: Path, revision: str | None, channel: Channel) -> Path:
    """Return the model's folder, after a download if there is none yet. Raises `ConfigError`."""
    folder = await asyncio.to_thread(_find_here, path, revision)
    name = str(path)
    if folder is None:
        found = await asyncio.to_thread(find_on_hub, name, revision)

        def show(text: str) -> None:
            channel.event("note", text=text)

        show(f"Downloading {name} at {found.commit[:12]} ({found.size / 1e6:,.0f} MB).")
        folder = await download_model(name, revision, found.files, found.size, show)
    if folder != path:
        channel.event("note", text=f"The model {name} is {folder}.")
        check_model(folder, None)
    return folder


def _find_here(path: Path, revision: str | None) -> Path | None:
    """Return the folder, or that of a name in the local cache; None for a name that is not there. Raises `ConfigError`
    if it can only be a folder, and there is none."""
    if path.is_dir():
        return path
    if not NAME.fullmatch(str(path)):
        raise ConfigError(
            f"model.path: there is no folder {path}.{_nearest(path)} A model on the Hugging Face hub is named with its "
            "owner, such as Qwen/Qwen2.5-0.5B-Instruct."
        )
    return find_cached(str(path), revision)


def _nearest(path: Path) -> str:
    """Return ` Did you mean ...?` with the folder whose name is most like the path's, or nothing."""
    near: list[str] = []
    with suppress(OSError):  # there is no folder above it, or it cannot be read
        near = difflib.get_close_matches(path.name, [f.name for f in path.parent.iterdir() if f.is_dir()], 1)
    return f" Did you mean the folder {path.parent / near[0]}?" if near else ""
