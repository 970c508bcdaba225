# mypy: disable-error-code="import-not-found"
"""Starts vLLM's own API server with a few routes more. It is run by the server's Python, which has no ALE:
`python ale_vllm_server.py --model FOLDER ...`, with the arguments of `vllm serve`.

1. `/ale/generate`: token ids in, token ids out with log-probabilities and versions; no text on the way. Tokens come in
   parts, a line of JSON each, so that they outlive the server. A client that goes away ends its request.
2. `/ale/load` and, where ALE started the server, `/ale/receive` and `/ale/open_handles`: new weights between two steps.
   Running requests go on with the prefixes that they have. Every request is salted with the number of the update, so
   none uses a prefix that other weights computed; one that has not sampled yet begins anew with the new salt.
3. Shared memory and semaphores get names that begin with `ALE_SHM_NAME`, so that none stays behind: vLLM leaves them to
   a process that may be killed with the server.
4. `/ale/abort`, `/ale/pause`, `/ale/resume`, `/ale/sleep`, `/ale/wake`, `/ale/fingerprint`, `/ale/info`
   (which needs no step of the engine), and `/ale/gpus`, where ALE started the server.
"""

from __future__ import annotations

import asyncio
import glob
import json
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing import get_context, process, shared_memory
from typing import Any

import msgspec
import uvloop
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from vllm.entrypoints.launchers.api_server import entry
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.inputs import tokens_input
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import utils
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.version import __version__

WORKER = "ale_vllm_worker.AleWorker"

SHM_NAME = os.environ.get("ALE_SHM_NAME", "")
if SHM_NAME:  # the processes below import this file too, before they make anything
    shared_memory._SHM_NAME_PREFIX = f"/{SHM_NAME}-"  # type: ignore[attr-defined]
    shared_memory._SHM_SAFE_NAME_LENGTH = len(SHM_NAME) + 14  # type: ignore[attr-defined]
    process.current_process()._config["semprefix"] = f"/{SHM_NAME}"  # type: ignore[attr-defined]


class AleRoutes:
    """The routes, over the engine of the app."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._update = 0
        self._paused = False
        self._again: dict[str, bool] = {}
        """Requests under way, and whether each begins anew when it is aborted."""
        self._changing = asyncio.Lock()
        self._question: asyncio.Future[str] | None = None
        """What the engine was asked last, at `_asked`, to learn whether it lives."""
        self._asked = 0.0

    @property
    def engine(self) -> Any:
        """vLLM's `AsyncLLM`."""
        return self._app.state.engine_client

    def list_routes(self) -> list[Route]:
        """Return all routes."""
        calls: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "load": lambda body: self._replace(body, "ale_load_folder", body["folder"]),
            "abort": self._abort,
            "pause": self._pause,
            "resume": self._resume,
            "sleep": self._sleep,
            "wake": self._wake,
            "fingerprint": self._ask_fingerprint,
            "info": self._tell_info,
        }
        if SHM_NAME:  # these run code that the caller names: only for ALE, at a socket that only its user can reach
            calls |= {
                "receive": lambda body: self._replace(body, "ale_receive", body["module"], json.dumps(body["request"])),
                "open_handles": lambda body: self._replace(body, "ale_open_handles", body["module"], body["handles"]),
                "gpus": self._list_gpus,
            }
        routes = [Route(f"/ale/{name}", _answer(call), methods=["POST"]) for name, call in calls.items()]
        return [Route("/ale/generate", self.generate, methods=["POST"]), *routes]

    async def generate(self, request: Request) -> Response:
        """Sample for one request, until its client goes away."""
        return Parts(self._sample(msgspec.json.decode(await request.body())))

    async def _sample(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        request_id = body["id"]
        self._again[request_id] = False
        try:
            again = True
            while again:
                again, total = False, 0
                async for part in self._sample_once(body, request_id):
                    total += len(part["token_ids"])
                    again = part["finish_reason"] == "abort" and not total and self._again[request_id]
                    if not again:
                        yield part
                self._again[request_id] = False
        finally:
            del self._again[request_id]

    async def _sample_once(self, body: dict[str, Any], request_id: str) -> AsyncIterator[dict[str, Any]]:
        parameters = SamplingParams(
            **body["sampling"],
            ignore_eos=True,  # the stop ids are all given
            logprobs=0,  # that of the sampled token
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            skip_clone=True,
        )
        # vLLM registers it without a pause of this task, so an update knows every request with an older salt.
        prompt, total = tokens_input(body["token_ids"], cache_salt=str(self._update)), 0
        async for output in self.engine.generate(prompt, parameters, request_id):
            sampled = output.outputs[0]
            logprobs = sampled.logprobs.logprobs if sampled.logprobs is not None else []
            if any(math.isnan(value) for value in logprobs):
                raise ValueError("the model's logits are NaN: its weights are broken")
            first, total = total, total + len(sampled.token_ids)
            yield {
                "token_ids": list(sampled.token_ids),
                "logprobs": logprobs,
                "versions": count_versions(self._list_version_starts(request_id, sampled), first, total),
                "finish_reason": sampled.finish_reason,
                "cached": output.num_cached_tokens or 0,
            }

    def _list_version_starts(self, request_id: str, sampled: Any) -> list[tuple[str, int]]:
        """The versions of a request so far, each with its first token. vLLM reports them only with the last tokens."""
        if sampled.finish_reason is not None:
            return [(span.version, span.start) for span in sampled.weight_versions or ()]
        processor = self.engine.output_processor
        (name,) = processor.external_req_ids[request_id]
        return list(processor.request_states[name].weight_version_starts)

    async def _replace(self, body: dict[str, Any], method: str, *arguments: str) -> None:
        """Load weights between two steps. If that fails, the engine stays paused: its weights may be any."""
        async with self._changing:
            await self.engine.pause_generation(mode="keep", clear_cache=False)
            await self.engine.collective_rpc(method, args=arguments)
            await self.engine.update_weight_version(str(body["version"]))
            self._update += 1
            await self._begin_anew()
            if not self._paused:
                await self.engine.resume_generation()

    async def _begin_anew(self) -> None:
        """Begin those requests anew that have sampled nothing: they may not use prefixes of older weights."""
        states = self.engine.output_processor.request_states.values()
        young = [state.external_req_id for state in states if not state.detokenizer.num_output_tokens()]
        for request_id in young:
            self._again[request_id] = True
        if young:
            await self.engine.abort(young)

    async def _abort(self, body: dict[str, Any]) -> None:
        for request_id in body["ids"]:
            if request_id in self._again:
                self._again[request_id] = False
        await self.engine.abort(body["ids"])

    async def _pause(self, body: dict[str, Any]) -> None:
        async with self._changing:
            await self.engine.pause_generation(mode="keep", clear_cache=False)
            self._paused = True

    async def _resume(self, body: dict[str, Any]) -> None:
        async with self._changing:
            self._paused = False
            await self.engine.resume_generation()

    async def _sleep(self, body: dict[str, Any]) -> None:
        async with self._changing:
            await self.engine.sleep(level=1, mode="abort")

    async def _wake(self, body: dict[str, Any]) -> None:
        async with self._changing:
            await self.engine.wake_up()
            self._update += 1  # the cache's memory holds nothing now

    async def _ask_fingerprint(self, body: dict[str, Any]) -> dict[str, Any]:
        """The shape and the sums of each parameter, added up over the ranks; what is the same on all of them is
        replicated and counts once."""
        ranks = [json.loads(result) for result in await self.engine.collective_rpc("ale_fingerprint")]
        found = {}
        for name, (shape, total, moments) in ranks[0].items():
            sums = [[rank[name][1], *rank[name][2]] for rank in ranks]
            if any(other != sums[0] for other in sums):
                total, *moments = (sum(parts) % 2**64 for parts in zip(*sums, strict=True))
            found[name] = shape, total, moments
        return found

    async def _list_gpus(self, body: dict[str, Any]) -> list[str]:
        """The UUID of each rank's GPU."""
        return [str(gpu) for gpu in await self.engine.collective_rpc("ale_gpu")]

    async def _tell_info(self, body: dict[str, Any]) -> dict[str, Any]:
        await self.engine.check_health()
        model = self.engine.model_config
        return {
            "release": __version__,
            "dtype": str(model.dtype).removeprefix("torch."),
            "max_context": model.max_model_len,
            "silent_s": self._measure_silence(),
        }

    def _measure_silence(self) -> float:
        """Ask the engine something, and return for how many seconds it has not answered: it answers between two steps,
        and one may take half a minute, so nothing waits for it here."""
        now = time.monotonic()
        if self._question is None or self._question.done():
            self._question, self._asked = asyncio.ensure_future(self.engine.get_weight_version()), now
        return now - self._asked


def _answer(call: Callable[[dict[str, Any]], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            body = msgspec.json.decode(await request.body() or b"{}")
            # A client that goes away must not leave a change half done.
            return _reply(await asyncio.shield(asyncio.ensure_future(call(body or {}))))
        except Exception as error:
            return _refuse(error)

    return answer


def _reply(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _refuse(error: Exception) -> Response:
    status = 503 if isinstance(error, EngineDeadError) else 400
    return Response(msgspec.json.encode({"error": _describe(error)}), status)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def count_versions(starts: list[tuple[str, int]], first: int, end: int) -> list[tuple[str, int]]:
    """Return the versions of the tokens from `first` up to `end`, each with the number of its tokens."""
    ends = [start for _, start in starts[1:]] + [end]
    spans = zip(starts, ends, strict=False)  # no version starts before the first token
    counts = [(name, min(stop, end) - max(start, first)) for (name, start), stop in spans]
    return [(name, count) for name, count in counts if count > 0]


class Parts(Response):
    """An answer in lines of JSON that are sent as they come, until the client goes away.

    An error before the first one is an answer of its own; after it, a last line `{"error": ...}`."""

    def __init__(self, parts: AsyncIterator[dict[str, Any]]) -> None:
        super().__init__(media_type="application/x-ndjson")
        del self.headers["content-length"]
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        sending = asyncio.ensure_future(self._send(scope, receive, send))
        leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            sending.cancel()
            leaving.cancel()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        try:
            async for part in self._parts:
                if not begun:
                    begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": msgspec.json.encode(part) + b"\n", "more_body": True})
        except Exception as error:
            if not begun:
                await _refuse(error)(scope, receive, send)
                return
            if isinstance(error, EngineDeadError):
                raise  # the connection breaks, as that of a server that died
            line = msgspec.json.encode({"error": _describe(error)}) + b"\n"
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def add_routes(build_app: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap vLLM's `build_app`, so that the app has the routes too."""

    def build(*arguments: Any, **named: Any) -> Any:
        app = build_app(*arguments, **named)
        app.router.routes[:0] = AleRoutes(app).list_routes()
        return app

    return build


def fork_engine() -> None:
    """Let the engine's process be forked, as on GPUs: a CPU's would be spawned, and import all of vLLM again, which is
    half of a start. A server that binds its threads to cores needs that."""
    if current_platform.is_cpu() and os.environ.get("VLLM_CPU_OMP_THREADS_BIND") == "nobind":
        utils.get_mp_context = lambda: get_context("fork")


def main() -> None:
    """Start the server with the arguments of the command line."""
    fork_engine()
    entry.build_app = add_routes(entry.build_app)
    parser = make_arg_parser(FlexibleArgumentParser(description="vLLM's API server with ALE's routes."))
    parser.set_defaults(worker_extension_cls=WORKER)
    arguments = parser.parse_args()
    validate_parsed_serve_args(arguments)
    try:
        uvloop.run(entry.run_server(arguments))
    finally:
        for path in glob.glob(f"/dev/shm/*{SHM_NAME}-*") if SHM_NAME else ():
            os.unlink(path)


if __name__ == "__main__":
    main()
