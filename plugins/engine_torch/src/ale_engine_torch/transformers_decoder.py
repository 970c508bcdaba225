"""A decoder for any causal LM that transformers can load; used for architectures that `llama_decoder.py` does not know.

It keeps one cache for each slot and runs the rows one after the other, several times slower. Prefixes are reused if
every layer of the model has a plain growing cache; a sliding window or a recurrent state cannot be truncated, so such a
model computes each prompt again.

A model is refused when it is loaded if its logits with a cache are not those of one pass over the whole text: they are
compared over a text that is longer than every window of the model, as far as the context allows.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ale.errors import ConfigError, EngineError

CACHES = ("cache", "past_key_values", "cache_params")
"""The names of a model's argument for its cache, of the newest releases of transformers first."""
WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size", "window_size", "local_window_size")
"""The settings of a model after as many tokens of which it attends otherwise."""
REPORTED: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
"""How transformers is asked to report weights that do not fit, each by its name."""
STEPS = 4
"""Tokens that the test of a model samples with a cache."""


class TransformersDecoder:
    """The interface of `LlamaDecoder` over `AutoModelForCausalLM`."""

    def __init__(self, folder: Path, slots: int, max_context: int, device: torch.device, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.cache_utils import DynamicCache, DynamicLayer

        auto: Any = AutoModelForCausalLM
        self._device, self._dtype = device, dtype
        with _quiet():
            model, report = auto.from_pretrained(str(folder), local_files_only=True, dtype=dtype, **REPORTED)
        if wrong := _describe_misfit(report, ("mismatched", "missing")):  # transformers would make random ones up
            raise ConfigError(f"The weights in {folder} do not fit its config.json: {wrong}.")
        self._model = model.to(device).eval()
        arguments = inspect.signature(model.forward).parameters
        # Models that can do so compute only the last token's logits.
        self._options = {"use_cache": True, **({"logits_to_keep": 1} if "logits_to_keep" in arguments else {})}
        self._cache_argument = next((name for name in CACHES if name in arguments), None)
        self._new_cache: Any = DynamicCache
        self._caches: list[Any] = [None] * slots
        self.max_context = max_context
        layers = DynamicCache(config=model.config).layers
        self.prefix_reuse = bool(layers) and all(type(layer) is DynamicLayer for layer in layers)
        self._check_positions(folder)
        self._check_cache(folder)

    def load(self, weights: dict[str, Tensor]) -> None:
        """Take over weights by their names in a folder, or in the model; tied ones may be left out. Raises
        `EngineError`, with nothing changed."""
        config = copy.deepcopy(self._model.config)
        try:
            with _quiet():
                model, report = type(self._model).from_pretrained(
                    None, config=config, state_dict=dict(weights), dtype=self._dtype, **REPORTED
                )
        except (RuntimeError, ValueError, KeyError) as error:
            raise EngineError(f"The weights are not of the model that was loaded: {_reason(error)}.") from error
        if wrong := _describe_misfit(report, ("unexpected", "mismatched", "missing")):
            raise EngineError(f"The weights are not of the model that was loaded: {wrong}.")
        self._model = model.to(self._device).eval()

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange two slots, whatever their length."""
        self._caches[a], self._caches[b] = self._caches[b], self._caches[a]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Give `target` a copy of the first `length` positions of `source`."""
        self._caches[target] = copy.deepcopy(self._caches[source])
        self._cut(self._caches[target], length)

    def decode(self, tokens: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> Tensor:
        """One token for each of the rows `0..n`."""
        rows = zip(tokens.tolist(), positions.tolist(), strict=True)
        return torch.cat([self._step(row, [token], position) for row, (token, position) in enumerate(rows)])

    def prefill(self, slots: Sequence[int], tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Write each slot's tokens from its start on; logits of the last ones."""
        rows = zip(slots, tokens, starts, strict=True)
        return torch.cat([self._step(slot, list(row), start) for slot, row, start in rows])

    def _step(self, slot: int, tokens: list[int], start: int) -> Tensor:
        assert self._cache_argument is not None
        cache = self._caches[slot]
        if start == 0 or cache is None:
            cache = self._caches[slot] = self._new_cache(config=self._model.config)
        elif self.prefix_reuse:
            self._cut(cache, start)
        ids = torch.tensor([tokens], device=self._device)
        positions = torch.arange(start, start + len(tokens), device=self._device)[None]
        cached = {self._cache_argument: cache}
        out = self._model(input_ids=ids, position_ids=positions, **cached, **self._options)
        return torch.as_tensor(out.logits[:, -1].float())

    def _check_positions(self, folder: Path) -> None:
        """Refuse contexts in which the model turns what it has cached by other positions than what comes later."""
        found = length_of_other_positions(self._model.config)
        if found is not None and self.max_context > found[1]:
            kind, length = found
            raise ConfigError(
                f"The model in {folder} has rotary positions of the type '{kind}', which are others for all of a text "
                f"once it is longer than {length} tokens; what was sampled before would be another policy's. Set "
                f"engine.max_context to at most {length} (here it allows {self.max_context})."
            )

    @torch.inference_mode()
    def _check_cache(self, folder: Path) -> None:
        """Refuse a model whose logits with a cache are not those without."""
        windows = [getattr(self._model.config, name, None) for name in WINDOWS]
        longest = max((n for n in windows if isinstance(n, int)), default=0)
        length = min(self.max_context, longest + 16)
        vocab = int(self._model.get_input_embeddings().num_embeddings)
        tokens = torch.randint(vocab, (length,), generator=torch.Generator().manual_seed(0)).tolist()
        steps = range(max(1, length - STEPS), length)
        why = "it takes no cache" if self._cache_argument is None else ""
        if not why and steps:
            try:
                found = [self._step(0, tokens[: steps[0]], 0)]
                kept = self._caches[0]
                self._step(0, tokens[1:3], 0)  # another text meanwhile, with a cache of its own
                self._caches[0] = kept
                found += [self._step(0, [tokens[at]], at) for at in steps]
                ids = torch.tensor([tokens], device=self._device)
                wanted = self._model(input_ids=ids, use_cache=False).logits[0, steps[0] - 1 :].float()
                far = float((torch.cat(found) - wanted).abs().max() / wanted.abs().max().clamp(min=1e-9))
                if not far <= (1e-3 if self._dtype == torch.float32 else 5e-2):
                    why = f"its logits with a cache differ from those without by {far:.1%} of the largest"
            except (AttributeError, TypeError, ValueError, RuntimeError, IndexError) as error:
                why = _reason(error)
        self._caches[0] = None
        if why:
            raise ConfigError(
                f"The engine 'torch' cannot sample from the model in {folder} token by token: {why}. Take another "
                "engine for it (engine: vllm or sglang), or another model."
            )

    @staticmethod
    def _cut(cache: Any, length: int) -> None:
        surplus = cache.get_seq_length() - length
        if surplus > 0:
            cache.crop(-surplus)  # from the end: the form that all releases of transformers 5 take


def length_of_other_positions(config: Any) -> tuple[str, int] | None:
    """Return the type of rotary positions that depend on a text's length, and the length up to which they do not
    change; None if there are none."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [parameters] if "rope_type" in parameters else [p for p in parameters.values() if isinstance(p, dict)]
    found = []
    for rope in kinds:
        kind = str(rope.get("rope_type", "default"))
        if kind == "longrope":
            found.append((kind, int(rope["original_max_position_embeddings"])))
        elif kind == "dynamic" and not rope.get("alpha"):
            found.append((kind, int(config.max_position_embeddings)))
    return min(found, key=lambda pair: pair[1], default=None)


def _describe_misfit(report: Mapping[str, Any], kinds: Sequence[str]) -> str:
    """Return the first weight of these kinds in transformers' report of a load, and what is wrong; empty if none is."""
    words = {"unexpected": "unknown", "mismatched": "of another shape", "missing": "missing"}
    for kind in kinds:
        names = sorted(str(entry if isinstance(entry, str) else entry[0]) for entry in report[f"{kind}_keys"])
        if names:
            return f"'{names[0]}' is {words[kind]}"
    return ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from writing progress bars and reports: a run has its own display."""
    from transformers.utils import logging as _logging

    quiet: Any = _logging
    bars, verbosity = quiet.is_progress_bar_enabled(), quiet.get_verbosity()
    quiet.disable_progress_bar()
    quiet.set_verbosity_error()
    try:
        yield
    finally:
        quiet.set_verbosity(verbosity)
        if bars:
            quiet.enable_progress_bar()


def _reason(error: Exception) -> str:
    """Return the first line of what an error says, without a full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
