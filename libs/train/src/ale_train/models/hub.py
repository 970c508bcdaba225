"""What the hub and its local cache say about a model; every refusal is a sentence.

`huggingface_hub` is imported when it is needed, since it takes a while and most runs have a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ale.errors import ConfigError
from ale.registry.validation import one_line_error
from ale_train.models.model_files import choose_files, find_missing, find_missing_in

TIMEOUT_S = 10
"""The time within which the hub must answer a question."""
READ = ("config.json", "generation_config.json", "tokenizer*.json", "*.jinja", "model*.safetensors")
"""The files of a model in the cache that must be there if its repository has them."""


@dataclass(frozen=True)
class HubModel:
    """A model on the hub: the commit, and the files that a run needs, with the size of all of them in bytes."""

    commit: str
    files: tuple[str, ...]
    size: int


def find_cached(name: str, revision: str | None) -> Path | None:
    """Return the folder of a model that is whole in the local cache, without asking the hub; None if there is none."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            name, revision=revision, local_files_only=True, allow_patterns=list(READ), ignore_patterns="*/*"
        )
    except LocalEntryNotFoundError:
        return None
    missing = [what for what in find_missing_in(Path(folder)) if not what.startswith("a chat template")]
    return None if missing else Path(folder)


def find_on_hub(name: str, revision: str | None) -> HubModel:
    """Ask the hub for a model. Raises `ConfigError` if it is not there, not whole or not open to this user."""
    from huggingface_hub import HfApi, constants

    with as_sentence(name, revision):
        found = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
        sizes = {file.rfilename: file.size or 0 for file in found.siblings or ()}
        if found.gated:
            page = f"{constants.ENDPOINT}/{name}/resolve/{found.sha}/config.json"
            HfApi().get_hf_file_metadata(url=page, timeout=TIMEOUT_S)  # `auth_check` may wait for ever
    missing = find_missing([file for file in sizes if "/" not in file])
    if missing:
        raise ConfigError(
            f"model.path: {name} on the hub is no whole model of transformers: it lacks {_join(missing)}. "
            "Name another repository, or another model.revision."
        )
    files = choose_files(sizes)
    return HubModel(found.sha or "main", tuple(files), sum(sizes[file] for file in files))


@contextmanager
def as_sentence(name: str, revision: str | None) -> Iterator[None]:
    """Turn the errors of `huggingface_hub` into a `ConfigError` that says how to mend them."""
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    page = f"{constants.ENDPOINT}/{name}"
    try:
        yield
    except hub.GatedRepoError as error:
        raise ConfigError(
            f"model.path: {name} is gated. Accept its terms at {page}, and log in with `hf auth login` or set HF_TOKEN."
        ) from error
    except hub.RepositoryNotFoundError as error:
        raise ConfigError(
            f"model.path: there is no folder {name}, and no model {name} at {constants.ENDPOINT}. Check both for a "
            "misspelling; if it is private, log in with `hf auth login` or set HF_TOKEN."
        ) from error
    except hub.RevisionNotFoundError as error:
        raise ConfigError(
            f"model.revision: {name} has no branch, tag or commit '{revision}'; {page}/tree/main lists them."
        ) from error
    except hub.OfflineModeIsEnabled as error:
        raise ConfigError(
            f"model.path: {_not_here(name, revision)}, and HF_HUB_OFFLINE forbids to ask {page}."
        ) from error
    except hub.LocalEntryNotFoundError as error:  # so it wraps an error of the network, or a status such as 500
        raise ConfigError(f"model.path: {_not_here(name, revision)}: {one_line_error(error)}.") from error
    except hub.HfHubHTTPError as error:
        reason = one_line_error(str(error).strip().partition("\n")[0])
        raise ConfigError(f"model.path: {_not_here(name, revision)}, and {page} refuses it: {reason}.") from error
    except Exception as error:  # of the HTTP library, which is another one in each version of huggingface_hub
        raise ConfigError(
            f"model.path: {_not_here(name, revision)}, and {constants.ENDPOINT} cannot be reached "
            f"({type(error).__name__}). Download it where there is a network (`hf download {name}`), or give a folder."
        ) from error


def _not_here(name: str, revision: str | None) -> str:
    from huggingface_hub import constants

    wanted = f"{name} at '{revision}'" if revision else name
    return f"there is no folder {name}, and {wanted} is not whole in the cache {constants.HF_HUB_CACHE}"


def _join(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
