"""A folder or a name is checked before a run starts: each mistake is a sentence, and what is here asks nobody."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from ale.errors import ConfigError
from ale_train.config.run import ModelConfig
from ale_train.models.model_files import choose_files
from ale_train.models.named_model import check_model


def refusal(path: str | Path, revision: str | None = None) -> str:
    """The sentence with which a model is refused."""
    with pytest.raises(ConfigError) as told:
        check_model(Path(path), revision)
    return str(told.value)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files into a new folder."""
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_a_revision_goes_with_a_path() -> None:
    with pytest.raises(ValueError, match="'revision' is of the model that 'path' names"):
        ModelConfig.model_validate({"revision": "main"})


@pytest.mark.parametrize(
    ("without", "lacks"),
    [
        (("config.json",), "it lacks config.json."),
        (("tokenizer.json",), "it lacks tokenizer.json."),
        (("model.safetensors", "pytorch_model.bin"), "it lacks weights (model.safetensors)."),
        (("tokenizer_config.json",), "it lacks a chat template (chat_template.jinja)."),
        (("config.json", "tokenizer.json"), "it lacks config.json, tokenizer.json."),
    ],
)
def test_a_folder_that_is_no_whole_model_says_what_it_lacks(
    tmp_path: Path, hub: Any, without: tuple[str, ...], lacks: str
) -> None:
    folder = write(tmp_path / "model", {name: data for name, data in hub.whole.items() if name not in without})
    assert refusal(folder).startswith(f"model.path: {folder} is no whole model: {lacks}")
    for name in without:
        (folder / name).write_bytes(hub.whole[name])
    check_model(folder, None)
    assert hub.requests == []


def test_a_part_of_the_weights_that_is_missing_is_named(tmp_path: Path, hub: Any) -> None:
    parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    files = {name: data for name, data in hub.whole.items() if "model" not in name}
    files |= {"model.safetensors.index.json": json.dumps({"weight_map": parts}).encode(), parts["a"]: b"w"}
    folder = write(tmp_path / "model", files)
    assert f"it lacks {parts['b']}." in refusal(folder)
    (folder / "model.safetensors.index.json").write_bytes(b"[]")
    assert "it lacks the list of parts in model.safetensors.index.json." in refusal(folder)


def test_a_folder_has_no_revision(tmp_path: Path, hub: Any) -> None:
    folder = write(tmp_path / "model", hub.whole)
    assert f"model.revision: model.path is the folder {folder}, which has no revisions" in refusal(folder, "main")


def test_a_misspelt_folder_is_told_the_nearest_one(tmp_path: Path, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "model", hub.whole)
    write(tmp_path / "out" / "final", hub.whole)
    assert "there is no folder modle. Did you mean the folder model? A model on" in refusal("./modle")
    assert f"Did you mean the folder {tmp_path}/out/final?" in refusal(tmp_path / "out" / "finla")
    assert refusal("quite/other/thing").startswith("model.path: there is no folder quite/other/thing. A model on")
    assert hub.requests == [], "none of these can be a name on the hub"
    assert refusal("out/finla").endswith("Did you mean the folder out/final?"), "this one can"


def test_a_name_on_the_hub_is_checked_and_not_downloaded(hub: Any) -> None:
    check_model(Path("team/small"), None)
    check_model(Path("team/small"), "v1")
    assert [request for request in hub.requests if "/resolve/" in request] == []
    assert not Path(constants.HF_HUB_CACHE).exists()


def test_a_name_that_does_not_exist_is_neither_folder_nor_model(hub: Any) -> None:
    assert refusal("team/smal").startswith(
        f"model.path: there is no folder team/smal, and no model team/smal at {hub.url}. Check both for a misspelling"
    )


def test_a_revision_that_does_not_exist_is_named(hub: Any) -> None:
    says = f"model.revision: team/small has no branch, tag or commit 'v2'; {hub.url}/team/small/tree/main lists them."
    assert refusal("team/small", "v2") == says


def test_a_gated_model_says_how_to_log_in(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add("team/small")
    mend = f"Accept its terms at {hub.url}/team/small, and log in with `hf auth login` or set HF_TOKEN."
    assert refusal("team/small") == f"model.path: team/small is gated. {mend}"
    monkeypatch.setenv("HF_TOKEN", hub.token)
    check_model(Path("team/small"), None)


def test_a_repository_that_is_no_model_of_transformers_says_what_it_lacks(hub: Any) -> None:
    hub.models["team/small"] = {"model.gguf": b"", "config.json": b"", "onnx/tokenizer.json": b""}
    assert "it lacks tokenizer.json and weights (model.safetensors)." in refusal("team/small")


def test_a_hub_that_is_down_or_not_there_is_a_sentence(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.status = 403
    assert f"and {hub.url}/team/small refuses it: " in refusal("team/small")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can meanwhile
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", nobody)
        says = refusal("team/small")
    assert f"team/small is not whole in the cache {constants.HF_HUB_CACHE}, and {nobody} cannot be reached" in says
    assert "`hf download team/small`" in says


def test_without_a_network_a_name_must_be_in_the_cache(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    says = refusal("team/small", "v1")
    assert f"team/small at 'v1' is not whole in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE forbids" in says
    hub.put_into_cache("team/small", hub.whole, "v1")
    check_model(Path("team/small"), "v1")
    assert hub.requests == []


def test_a_name_in_the_cache_asks_nobody(hub: Any) -> None:
    hub.put_into_cache("team/small", hub.whole)
    check_model(Path("team/small"), None)
    assert hub.requests == []


def test_a_cache_that_is_not_whole_is_completed_by_the_hub(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = hub.put_into_cache("team/small", {"config.json": b"{}", "tokenizer.json": b"{}"})
    (snapshot / "model.safetensors").symlink_to("../../blobs/of-an-interrupted-download")
    check_model(Path("team/small"), None)
    assert hub.requests != []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "is not whole in the cache" in refusal("team/small")


def test_of_a_repository_only_what_a_model_needs_is_chosen() -> None:
    names = ["config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json", "pytorch_model.bin"]
    names += ["consolidated.safetensors", "chat_template.jinja", "merges.txt", "onnx/config.json", "README.md"]
    assert choose_files(names) == [
        "chat_template.jinja",
        "config.json",
        "merges.txt",
        "model-00001-of-00001.safetensors",
        "model.safetensors.index.json",
    ]
    assert choose_files(["pytorch_model.bin", "training_args.bin"]) == ["pytorch_model.bin"]
