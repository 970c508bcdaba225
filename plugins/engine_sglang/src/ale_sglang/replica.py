"""One server of SGLang, started with the changes of `server/ale_sglang_server.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ale.errors import EngineError
from ale.specs.driver import DriverContext
from ale.specs.engine import GenerateRequest
from ale_engines.server.contract import CHECK_S
from ale_engines.server.http_client import KEEP_ALIVE_S, ServerClient
from ale_engines.server.launch import Launch, ServerSetup
from ale_engines.server.metrics import sum_samples
from ale_engines.server.model_folder import ModelFolder
from ale_engines.server.python_environments import find_python
from ale_engines.server.replica import ServerReplica
from ale_engines.server.sampled_tokens import STREAM_INTERVAL, Sampled
from ale_engines.server.settings import ServerSettings
from ale_engines.weights.fingerprint import MODULUS, Fingerprint, TensorSum
from ale_sglang.model_limits import check_limits
from ale_sglang.server_arguments import RESERVE, SERVER, list_arguments

CALL_S = 5.0
"""Seconds for what SGLang answers at once."""
METRICS = {
    "sglang:num_running_reqs": "server_running",
    "sglang:num_queue_reqs": "server_waiting",
    "sglang:token_usage": "server_cache_use",
    "sglang:cache_hit_rate": "server_prefix_hit_rate",
    "sglang:num_retracted_reqs": "server_preemptions",
    "sglang:prompt_tokens_total": "server_prompt_tokens",
    "sglang:generation_tokens_total": "server_sampled_tokens",
}
"""The server's metrics that are passed on, and their names here."""


class SglangReplica(ServerReplica):
    """A server of SGLang as a replica."""

    server = "sglang"
    versions = ("0.5.23", "0.5.24")  # the launcher changes parts of SGLang that are not its interface

    def __init__(self, settings: ServerSettings, context: DriverContext, number: int = 0) -> None:
        super().__init__(settings, context, number)
        self._paused = False

    @property
    def frees_memory(self) -> bool:
        """What SGLang has taken of a GPU it keeps."""
        return self.device == "cpu"

    def find_python(self, device: str) -> Path | None:
        return find_python(self.server, device)

    def check_model(self, model: ModelFolder) -> None:
        super().check_model(model)
        check_limits(model, self.max_context)

    def make_argv(self, launch: Launch) -> list[str]:
        return [str(launch.python), str(SERVER), *list_arguments(launch, self.settings)]

    def make_own_environment(self, launch: Launch) -> Mapping[str, str]:
        return {
            "ALE_SOCKET": str(launch.work / "socket"),
            "ALE_WORK": str(launch.work),
            "HF_HUB_OFFLINE": "1",
            "SGLANG_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S),
            # A server that fails ends at once, rather than after a minute of looking into itself.
            "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
            "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
        }

    def make_client(self, launch: Launch) -> ServerClient:
        return ServerClient(self.name, "http://localhost", launch.work / "socket")

    async def ask_release(self) -> str:
        await self.client.get("/ready", CALL_S)
        info = await self.client.get("/server_info", CALL_S)
        found = re.search(r'"version":"([^"]*)","frontend"', info)
        if found is None:
            raise EngineError(f"{self.name} answers, but not as SGLang does.")
        self._paused = False
        return found[1]

    async def ask_setup(self) -> ServerSetup:
        found = re.search(r'"ale_dtype":"([^"]*)","ale_context":(\d+)', await self.client.get("/server_info", CALL_S))
        if found is None:
            raise EngineError(
                f"{self.name} was not started with ALE's launcher, so it cannot say which weights it serves. Start it "
                f"with `PYTHON {SERVER} --model-path FOLDER --skip-tokenizer-init ...`, with the Python of its "
                "environment and the arguments of `sglang serve`."
            )
        return ServerSetup(found[1], int(found[2]) - RESERVE)

    async def sample(self, request: GenerateRequest, max_tokens: int, request_id: str, sampled: Sampled) -> str:
        name = whole_name(request_id)
        body = {
            "rid": name,
            "input_ids": request.token_ids,
            "sampling_params": self._describe_sampling(request, max_tokens),
            "return_logprob": True,
            "stream": True,
            "cache_salt": str(self.version),
        }
        meta: dict[str, Any] = {}
        lines = self.client.read_lines("/generate", body, self.settings.request_timeout_s)
        try:
            async with contextlib.aclosing(lines):
                async for line in lines:
                    if (data := line.removeprefix(b"data: ").strip()) and data != b"[DONE]":
                        meta = self._read_part(json.loads(data), sampled)
        except asyncio.CancelledError:
            # SGLang looks for closed connections only every few seconds.
            with contextlib.suppress(EngineError):
                await self.abort([request_id])
            raise
        self.usage.cached_prompt_tokens += meta.get("cached_tokens", 0)
        ended = meta.get("finish_reason") or {"type": "its answer broke off"}
        return str(ended["type"] if ended["type"] in ("stop", "length") else ended.get("message") or ended["type"])

    async def abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            await self.client.post("/abort_request", {"rid": whole_name(request_id)}, CALL_S)

    async def send_folder(self, folder: Path, version: int) -> None:
        """Running requests give their cache up; it is computed again with the new
        weights."""
        limit_s = self.settings.request_timeout_s
        await self.client.post("/pause_generation", {"mode": "retract"}, limit_s)
        try:
            update = {"model_path": absolute(folder), "weight_version": str(version), "flush_cache": True}
            await self.client.post("/update_weights_from_disk", update, limit_s)
        finally:
            if not self._paused:
                await self.client.post("/continue_generation", {}, limit_s)

    async def ask_fingerprint(self) -> Fingerprint:
        body = {"action": "ale_fingerprint", "selector": "target"}
        answer = await self.client.post("/weights_checker", body, self.settings.request_timeout_s)
        return read_fingerprint([rank["checksums"] for rank in answer["ranks"]])

    async def ask_metrics(self) -> dict[str, float]:
        return sum_samples(await self.client.get("/metrics", CHECK_S), METRICS)

    async def pause(self) -> None:
        self._paused = True  # first: an update that ends meanwhile lets the server go on otherwise
        # Requests that wait in the queue can be aborted while the server is paused; others could not.
        await self.client.post("/pause_generation", {"mode": "retract"}, self.settings.request_timeout_s)

    async def resume(self) -> None:
        self._paused = False
        await self.client.post("/continue_generation", {}, self.settings.request_timeout_s)

    def _describe_sampling(self, request: GenerateRequest, max_tokens: int) -> dict[str, Any]:
        wanted = request.sampling
        return {
            "temperature": wanted.temperature,
            "top_p": wanted.top_p,
            "top_k": wanted.top_k or -1,
            "max_new_tokens": max_tokens,
            "stop_token_ids": list(wanted.stop_token_ids),
            "sampling_seed": self.choose_seed(wanted),
            "stream_interval": STREAM_INTERVAL,
        }

    def _read_part(self, part: dict[str, Any], sampled: Sampled) -> dict[str, Any]:
        """Add a part to `sampled`, and return what SGLang says of the generation as a whole."""
        if "error" in part:
            raise EngineError(f"{self.name} refused a generation: {part['error']['message']}")
        meta: dict[str, Any] = part["meta_info"]
        first, end = len(sampled), meta["completion_tokens"]
        # A part may repeat tokens of earlier ones: when a request is aborted while it waits for its cache.
        entries = meta["output_token_logprobs"][first - end :] if end > first else []
        spans = meta.get("weight_versions") or ()
        versions = [int(span["version"]) for span in spans for _ in range(max(span["start"], first), span["end"])]
        sampled.add([token_id for _, token_id, *_ in entries], [logprob for logprob, *_ in entries], versions)
        return meta


def read_fingerprint(ranks: Sequence[Mapping[str, str]]) -> Fingerprint:
    """Return the sums of all ranks, of what each says that it holds."""
    found: dict[str, TensorSum] = {}
    for rank in ranks:
        for name, text in rank.items():
            shape, total, moments = json.loads(text)
            _, others, their_moments = found.get(name, TensorSum(shape, 0, (0,) * len(moments)))
            sums = [one + other for one, other in zip((total, *moments), (others, *their_moments), strict=True)]
            found[name] = TensorSum(tuple(shape), sums[0] % MODULUS, tuple(one % MODULUS for one in sums[1:]))
    return found


def whole_name(request_id: str) -> str:
    """A name that is no other's beginning: SGLang aborts all requests whose names begin with the one given."""
    return f"{request_id}."


def absolute(folder: Path) -> str:
    """The path of a folder as a process with another working folder finds it."""
    return str(folder.absolute())
