"""Starts SGLang, run by the Python that has it: `python ale_sglang_server.py SGLANG-ARGUMENTS...`.

It imports nothing of ALE.

SGLang's processes each have this file, or import it before they do anything else, so what it changes holds in all of
them. All that it changes is here (SGLang 0.5.23):

1. Log-probabilities are those at temperature 1 with nothing cut off, whatever a request samples with.
2. Each request samples with its own seed; in SGLang that comes only with deterministic kernels, which most attention
   backends lack.
3. A request ends at its own stop tokens alone, not at those of the model's configuration.
4. `/weights_checker` knows the action `ale_fingerprint`: the shape of each parameter, and sums modulo 2**64 of the bit
   patterns of its values.
5. With `ALE_SOCKET`, the server listens at that Unix socket instead of a port; with `ALE_WORK`, the counters that its
   processes share lie in that folder instead of `/dev/shm`, where SGLang leaves them for ever, and semaphores have its
   name, by which they are removed if the processes are killed.
6. SIGTERM ends the server at once; SGLang itself takes up to half a minute.
7. Each part of a streamed answer holds the tokens since the one before, with their versions; in SGLang these come with
   the last part alone.
8. A request can be aborted until it has ended. SGLang drops all aborts but the first, which is lost if it overtakes its
   request; and while it is paused it holds new requests back where no abort finds them. Now they wait in its queue, and
   `/ready` answers yes.
9. Without a GPU (`--device=cpu`), it stands in for the parts of SGLang that are built for GPUs alone, and SGLang's
   processes are forked: spawned ones would import all of it again, which is two thirds of a start.
10. Of SGLang's models it imports the one that is served: the others are two hundred modules.
11. `/server_info` has the dtype of the weights and the longest context, which the arguments may leave open.
"""

# mypy: disable-error-code="import-not-found, no-untyped-call"
from __future__ import annotations

import asyncio
import importlib
import json
import multiprocessing
import os
import sys
import types
from multiprocessing import process
from pathlib import Path
from typing import Any

ON_CPU = "--device=cpu" in sys.argv
os.environ["SGLANG_RETURN_ORIGINAL_LOGPROB"] = "1"
# Room beyond the model's own limit is for SGLang's reserve; ALE never asks for tokens there.
os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
if ON_CPU:
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # compiling needs a compiler and takes longer than it saves here

if WORK := os.environ.get("ALE_WORK"):
    process.current_process()._config["semprefix"] = f"/{os.path.basename(WORK)}"  # type: ignore[attr-defined]

import torch  # noqa: E402 - the variables come first


class AbsentKernels(types.ModuleType):
    """Stands in for `sgl_kernel`; the modules that SGLang looks for below it do not exist."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*_: Any, **__: Any) -> None:
            raise NotImplementedError(f"SGLang needs {self.__name__}.{name}, which does not exist on this machine.")

        return absent


def assign_req_to_token_pool_cpu(requests: Any, table: Any, starts: Any, ends: Any, slots: Any, _row: int) -> None:
    """Write each request's new cache slots, which follow one another in `slots`, into its row of `table`."""
    taken = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[request, start:end] = slots[taken : taken + end - start].to(table.dtype)
        taken += end - start


def stand_in_for_gpu_parts() -> Any:
    """Stand in for the kernels of a GPU, and for two operators that torchvision defines where it has them (point 9)."""
    kernels = sys.modules["sgl_kernel"] = AbsentKernels("sgl_kernel")
    vars(kernels)["assign_req_to_token_pool_cpu"] = assign_req_to_token_pool_cpu
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library  # the operators go when it goes


def sum_bits(tensor: Any) -> tuple[list[int], int, list[int]]:
    """Return the shape of a tensor, the sum modulo 2**64 of the bit patterns of its values, as signed integers, and for
    each dimension the sum of these times their position in it. The values are read as 64-bit integers in parts: on a
    CPU in such that stay in the cache, which is ten times faster."""
    shape, device = tensor.shape, tensor.device
    if not tensor.numel():
        return list(shape), 0, [0] * len(shape)
    table = tensor.detach().reshape(-1, shape[-1] if len(shape) > 1 else 1)
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    rows, columns = [], torch.zeros(table.shape[1], dtype=torch.int64, device=device)
    for part in torch.split(table, max(1, (2**18 if device.type == "cpu" else 2**24) // table.shape[1])):
        bits = part.contiguous().view(whole).to(torch.int64)
        rows.append(bits.sum(1))
        columns += bits.sum(0)
    leading = torch.cat(rows).reshape(shape[:-1] if len(shape) > 1 else shape)
    slices = [leading.movedim(at, 0).reshape(size, -1).sum(1) for at, size in enumerate(leading.shape)]
    slices += [columns] if len(shape) > 1 else []
    moments = [(sums * torch.arange(len(sums), device=device)).sum() for sums in slices]
    total, *rest = (number % 2**64 for number in torch.stack([leading.sum(), *moments]).tolist())
    return list(shape), total, rest


def mix(numbers: Any) -> Any:
    """Scramble 64-bit integers (the finalizer of splitmix64, https://doi.org/10.1145/2660193.2660195)."""
    numbers = (numbers ^ (numbers >> 30 & 2**34 - 1)) * (0xBF58476D1CE4E5B9 - 2**64)
    numbers = (numbers ^ (numbers >> 27 & 2**37 - 1)) * (0x94D049BB133111EB - 2**64)
    return numbers ^ (numbers >> 31 & 2**33 - 1)


def sample_with_seeds(logprobs: Any, seeds: Any, positions: Any) -> Any:
    """Sample an index from each row of `logprobs` [n, m], which need not be normalised, by inverting its cumulative
    sum; the same seed [n] and position [n] give the same uniform number. Returns [n, 1], int64."""
    uniform = (mix(mix(seeds) + positions.view(-1).to(torch.int64)) >> 32 & 2**32 - 1).to(torch.float64) / 2**32
    sums = logprobs.to(torch.float64).exp_().cumsum(-1)
    # From the right, so that no value of probability 0 is taken.
    return torch.searchsorted(sums, uniform[:, None] * sums[:, -1:], right=True)


def change_sglang() -> None:
    """Change how SGLang samples, aborts, streams and ends (points 2 to 8)."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers import sampler
    from sglang.srt.managers import load_snapshot, tokenizer_manager
    from sglang.srt.managers.scheduler_components.output_streamer import _GenerationStreamAccumulator as Parts
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from sglang.srt.utils import weight_checker
    from sglang.srt.utils.weight_versions import compute_weight_version_spans

    ModelConfig._get_hf_eos_token_id = lambda self: None

    make_info = SamplingBatchInfo.from_schedule_batch.__func__

    def make_seeded_info(cls: Any, batch: Any, vocab_size: int) -> Any:
        info = make_info(cls, batch, vocab_size)
        seeds = [request.sampling_params.sampling_seed or 0 for request in batch.reqs]
        info.sampling_seed = torch.tensor(seeds, dtype=torch.int64).to(batch.device, non_blocking=True)
        return info

    SamplingBatchInfo.from_schedule_batch = classmethod(make_seeded_info)
    sampler.multinomial_with_seed = sample_with_seeds  # SGLang's own needs a kernel, and a number for each token

    handle = weight_checker.WeightChecker.handle

    def handle_ours(self: Any, action: str, *arguments: Any, role: str, **options: Any) -> Any:
        if action != "ale_fingerprint":
            return handle(self, action, *arguments, role=role, **options)
        place = self._parallelism_info(role=role)
        sums = {}
        for name, parameter in self._get_model().named_parameters():
            # Parameters without these are whole in each process, and count once.
            if place.tp_rank == 0 or hasattr(parameter, "output_dim") or hasattr(parameter, "input_dim"):
                sums[name] = json.dumps(sum_bits(parameter))
        info = weight_checker.ChecksumInfo(checksums=sums, per_gpu_checksum="", parallelism_info=place)
        return info.model_dump()

    weight_checker.WeightChecker.handle = handle_ours

    accept = Parts.accept

    def accept_with_versions(self: Any, *, req: Any) -> None:
        parts = len(self.weight_versions)
        accept(self, req=req)
        if len(self.weight_versions) > parts and self.weight_versions[-1] is None:
            self.weight_versions[-1] = compute_weight_version_spans(
                req.weight_version_events,
                current_version=self.current_weight_version,
                num_output_tokens=len(req.output_ids_through_stop),
            )

    Parts.accept = accept_with_versions

    # What it started dies with it, or by the hand of its guard.
    tokenizer_manager.SignalHandler.sigterm_handler = lambda *_: os._exit(0)

    manager = tokenizer_manager.TokenizerManager
    abort, begin = manager.abort_request, manager.__init__

    def abort_again(self: Any, rid: str = "", abort_all: bool = False) -> None:
        if (state := self.rid_to_state.get(rid)) is not None:
            state.abort_sent = False
        abort(self, rid, abort_all)

    def begin_without_holding_back(self: Any, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self.is_pause_cond.wait_for = lambda is_over: asyncio.sleep(0)

    manager.abort_request, manager.__init__ = abort_again, begin_without_holding_back
    manager.is_ready = manager.is_healthy  # who finds it paused by a client that went away lets it go on

    if WORK:
        load_snapshot.shm_path_for = lambda name: os.path.join(WORK, "loads")


def change_http_server() -> None:
    """Listen at a Unix socket, not at a host's port, and complete `/server_info` (points 5 and 11)."""
    import uvicorn
    from sglang.srt.entrypoints import http_server

    path = os.environ.get("ALE_SOCKET")
    build = http_server.build_server_info

    def build_with_setup(*arguments: Any) -> dict[str, Any]:
        model = http_server._global_state.tokenizer_manager.model_config
        setup = {"ale_dtype": str(model.dtype).removeprefix("torch."), "ale_context": model.context_len}
        return {**build(*arguments), **setup}

    http_server.build_server_info = build_with_setup

    class SocketConfig(uvicorn.Config):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "uds": path})

    if path:
        uvicorn.Config = SocketConfig  # type: ignore[misc]
        # After its start the server asks itself, at its port, to freeze the garbage collector: a request of its own.
        http_server._freeze_gc_after_server_warmup = lambda arguments: None


def fork_processes() -> None:
    """Have SGLang fork its processes, not spawn them (point 9)."""
    set_start_method = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda method, force=False: set_start_method("fork", force)


def find_other_models(folder: str) -> list[str]:
    """The modules of SGLang's models that define no architecture of the model in a folder. None if no module defines
    it: SGLang then has a module for all that transformers knows."""
    config = Path(folder) / "config.json"
    if not config.is_file():  # SGLang finds it by its name, or says that there is none
        return []
    names = json.loads(config.read_text()).get("architectures") or ()
    (package,) = importlib.import_module("sglang.srt").__path__
    texts = {path.stem: path.read_text() for path in (Path(package) / "models").glob("*.py")}
    others = [module for module, text in texts.items() if not any(f"class {name}(" in text for name in names)]
    return others if len(others) < len(texts) else []


STAND_INS = stand_in_for_gpu_parts() if ON_CPU else None
change_sglang()

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    change_http_server()
    if ON_CPU:
        fork_processes()
    # `pytorch` is the only sampling backend that takes seeds: another one ends the server at the first of them.
    own = ["--incremental-streaming-output", "--sampling-backend", "pytorch"]
    arguments = prepare_server_args([*sys.argv[1:], *own])
    os.environ.setdefault("SGLANG_DISABLED_MODEL_ARCHS", ",".join(find_other_models(arguments.model_path)))
    run_server(arguments)
