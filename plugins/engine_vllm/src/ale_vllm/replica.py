"""One server of vLLM, started with the routes of `server/ale_vllm_server.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest, Ticket
from ale_engines.server.contract import CHECK_S
from ale_engines.server.http_client import KEEP_ALIVE_S, ServerClient
from ale_engines.server.launch import Launch, ServerSetup
from ale_engines.server.metrics import sum_samples
from ale_engines.server.python_environments import find_python
from ale_engines.server.replica import SILENCE_S, ServerReplica
from ale_engines.server.sampled_tokens import STREAM_INTERVAL, Sampled
from ale_engines.server.settings import ServerSettings
from ale_engines.weights import fingerprint
from ale_engines.weights.fingerprint import Fingerprint, TensorSum
from ale_torch.weights.tickets import BroadcastTicket, IpcTicket
from ale_vllm.server_arguments import SERVER, list_arguments

CALL_S = 5.0
"""Seconds for what vLLM answers without its engine."""
AT_START = "default"
"""vLLM's label of the weights that it was started with."""
METRICS = {
    "vllm:num_requests_running": "server_running",
    "vllm:num_requests_waiting": "server_waiting",
    "vllm:kv_cache_usage_perc": "server_cache_use",
    "vllm:prefix_cache_queries_total": "server_prefix_queries",
    "vllm:prefix_cache_hits_total": "server_prefix_hits",
    "vllm:num_preemptions_total": "server_preemptions",
    "vllm:prompt_tokens_total": "server_prompt_tokens",
    "vllm:generation_tokens_total": "server_sampled_tokens",
}
"""The server's metrics that are passed on, and their names here."""


class VllmReplica(ServerReplica):
    """A server of vLLM as a replica."""

    server = "vllm"
    versions = ("0.32", "0.33")

    def find_python(self, device: str) -> Path | None:
        return find_python(self.server, device)

    def make_argv(self, launch: Launch) -> list[str]:
        self.transports = choose_transports(launch.cuda, self.settings)
        return [str(launch.python), str(SERVER), *list_arguments(launch, self.settings)]

    def make_own_environment(self, launch: Launch) -> Mapping[str, str]:
        own = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
        own |= {"ALE_SHM_NAME": launch.work.name, "VLLM_RPC_BASE_PATH": str(launch.work)}
        own["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = str(KEEP_ALIVE_S)
        if not launch.cuda:
            # Binding threads to cores would put all replicas, and the trainer, on the same ones.
            own |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
            # Of the sampler's functions only: each start would take seconds more, and the first needs a compiler.
            own |= {"TORCH_COMPILE_DISABLE": "1"}
            if self.settings.tensor_parallel == 1:
                own["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # else `uni` is not taken; see `server_arguments.py`
        return own

    def make_client(self, launch: Launch) -> ServerClient:
        return ServerClient(self.name, "http://localhost", launch.work / "socket")

    async def ask_release(self) -> str:
        try:
            info = await self.client.post("/ale/info", timeout_s=CALL_S)
        except EngineError as error:
            if "(404)" not in str(error):
                raise
            raise EngineError(
                f"{self.url} is a server without ALE's routes. Start it with `PYTHON {SERVER} --model FOLDER "
                "...`, with the Python of its environment and the arguments of `vllm serve`."
            ) from None
        return str(info["release"])

    async def ask_setup(self) -> ServerSetup:
        info = await self.client.post("/ale/info", timeout_s=CALL_S)
        return ServerSetup(info["dtype"], info["max_context"])

    async def sample(self, request: GenerateRequest, max_tokens: int, request_id: str, sampled: Sampled) -> str:
        wanted = request.sampling
        sampling: dict[str, Any] = {
            "temperature": wanted.temperature,
            "top_p": wanted.top_p,
            "top_k": wanted.top_k,
            "max_tokens": max_tokens,
            "stop_token_ids": list(wanted.stop_token_ids),
            "stream_interval": STREAM_INTERVAL,
            "seed": self.choose_seed(wanted),
        }
        body = {"id": request_id, "token_ids": request.token_ids, "sampling": sampling}
        part: dict[str, Any] = {}
        async with aclosing(self.client.read_lines("/ale/generate", body, self.settings.request_timeout_s)) as lines:
            async for line in lines:
                part = json.loads(line)
                if "error" in part:
                    raise EngineError(f"{self.name} ended a generation after {len(sampled)} tokens: {part['error']}.")
                labels = [(0 if label == AT_START else int(label), count) for label, count in part["versions"]]
                versions = [version for version, count in labels for _ in range(count)]
                sampled.add(part["token_ids"], part["logprobs"], versions)
        self.usage.cached_prompt_tokens += part.get("cached", 0)
        return part.get("finish_reason") or "its answer broke off"

    async def abort(self, request_ids: list[str]) -> None:
        await self.client.post("/ale/abort", {"ids": request_ids}, CALL_S)

    async def send_folder(self, folder: Path, version: int) -> None:
        body = {"folder": absolute(folder), "version": version}
        await self.client.post("/ale/load", body, self.settings.request_timeout_s)

    async def check_ticket(self, ticket: Ticket, version: int) -> None:
        assert self.model is not None
        match ticket:
            case BroadcastTicket():
                source = f"The tensors of policy version {version}"
                self.model.check_same({tensor.name: tuple(tensor.shape) for tensor in ticket.tensors}, source)
            case IpcTicket():
                for gpu in await self.client.post("/ale/gpus", timeout_s=self.settings.request_timeout_s):
                    if gpu != ticket.device:
                        raise EngineError(
                            f"{self.name} computes on GPU {gpu} and the trainer on GPU {ticket.device}, but weights by "
                            "'ipc' stay in the memory of one GPU. Name the server's GPU in "
                            "engine.environment.CUDA_VISIBLE_DEVICES: then they come by 'nccl'. Or set trainer.device "
                            "to that GPU."
                        )

    async def send_ticket(self, ticket: Ticket, version: int) -> Fingerprint:
        assert self.model is not None
        module, limit_s = receiver_file(), self.settings.request_timeout_s
        match ticket:
            case BroadcastTicket():
                request = ticket.as_request(self.group, self.settings.tensor_parallel)
                await self.client.post(
                    "/ale/receive", {"version": version, "module": module, "request": request}, limit_s
                )
            case IpcTicket():
                body = {"version": version, "module": module, "handles": ticket.handles.hex()}
                await self.client.post("/ale/open_handles", body, limit_s)
            case _:
                return await super().send_ticket(ticket, version)
        return fingerprint.merge(ticket.sums[self.dtype], self.model.tied)

    async def ask_fingerprint(self) -> Fingerprint:
        return read_fingerprint(await self.client.post("/ale/fingerprint", timeout_s=self.settings.request_timeout_s))

    async def ask_metrics(self) -> dict[str, float]:
        """It also asks whether the engine behind the routes lives."""
        info = await self.client.post("/ale/info", timeout_s=CHECK_S)
        if info["silent_s"] > SILENCE_S:
            raise EngineError(f"The engine of {self.name} has not answered its server for {info['silent_s']:.0f} s.")
        return sum_samples(await self.client.get("/metrics", CHECK_S), METRICS)

    async def pause(self) -> None:
        await self.client.post("/ale/pause", timeout_s=self.settings.request_timeout_s)

    async def resume(self) -> None:
        await self.client.post("/ale/resume", timeout_s=self.settings.request_timeout_s)

    async def sleep(self) -> None:
        """On a GPU, the weights move to the CPU's memory, the cache is dropped, and what
        runs is interrupted. A server on the CPU has nothing to free."""
        if self.launch is None or self.launch.cuda:
            await self.client.post("/ale/sleep", timeout_s=self.settings.request_timeout_s)

    async def wake(self) -> None:
        if self.launch is None or self.launch.cuda:
            await self.client.post("/ale/wake", timeout_s=self.settings.request_timeout_s)


def read_fingerprint(held: Mapping[str, Any]) -> Fingerprint:
    """Return what vLLM's workers say that they hold, by the names of `fingerprint.py`: vLLM has a module more for
    experts."""
    return {
        name.replace(".experts.routed_experts.", ".experts."): TensorSum(tuple(shape), total, tuple(moments))
        for name, (shape, total, moments) in held.items()
    }


def receiver_file() -> str:
    """The file of the module that the server's processes import to receive weights; here it would bring torch."""
    found = find_spec("ale_torch.weights.receiver")
    assert found is not None
    assert found.origin is not None
    return found.origin


def choose_transports(cuda: bool, settings: ServerSettings) -> tuple[str, ...]:
    """Return the transports of a server that ALE starts. On GPUs weights do not pass through the CPU's memory: a single
    server is on the trainer's GPU, as both take the first one (`ipc`); several GPUs, or another one, need `nccl`."""
    if not cuda:
        return ("memory", "folder", "gloo")
    alone = settings.replicas == settings.tensor_parallel == 1 and "CUDA_VISIBLE_DEVICES" not in settings.environment
    return ("ipc" if alone else "nccl", "folder")


def absolute(folder: Path) -> str:
    """The path of a folder as a process with another working folder finds it."""
    return str(folder.absolute())
