"""A decoder for any causal LM that transformers can load; used for architectures that `llama_decoder.py` does not know.

It keeps one cache for each slot and runs the rows one after the other: correct for every model, but several times
slower. Prefixes are reused if every layer of the model has a plain growing cache; a sliding window or a recurrent
state cannot be truncated, so such a model computes each prompt again.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ale.errors import EngineError


class TransformersDecoder:
    """The interface of `LlamaDecoder` over `AutoModelForCausalLM`."""

    def __init__(self, folder: Path, slots: int, max_context: int, device: torch.device, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.cache_utils import DynamicCache, DynamicLayer

        model: Any = AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True, dtype=dtype)
        self._model = model.to(device).eval()
        self._device = device
        # Models that can do so compute only the last token's logits.
        last_only = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._options = {"use_cache": True, **({"logits_to_keep": 1} if last_only else {})}
        self._new_cache: Any = DynamicCache
        self._caches: list[Any] = [None] * slots
        self.max_context = max_context
        layers = DynamicCache(config=model.config).layers
        self.prefix_reuse = bool(layers) and all(type(layer) is DynamicLayer for layer in layers)

    def load(self, weights: dict[str, Tensor]) -> None:
        """Take over weights by name; tied ones may be left out. Raises `EngineError`, with nothing changed."""
        own = self._model.state_dict()
        unknown = sorted(name for name in weights if name not in own)
        wrong = sorted(name for name, w in weights.items() if name in own and own[name].shape != w.shape)
        # A tied weight is the same memory under two names: one of them is enough.
        covered = {own[name].data_ptr() for name in weights if name in own}
        missing = sorted(name for name, w in own.items() if name not in weights and w.data_ptr() not in covered)
        for what, names in (("unknown", unknown), ("of another shape", wrong), ("missing", missing)):
            if names:
                raise EngineError(f"The weights are not of the model that was loaded: '{names[0]}' is {what}.")
        self._model.load_state_dict(weights, strict=False)

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
        cache = self._caches[slot]
        if start == 0 or cache is None:
            cache = self._caches[slot] = self._new_cache(config=self._model.config)
        elif self.prefix_reuse:
            self._cut(cache, start)
        ids = torch.tensor([tokens], device=self._device)
        positions = torch.arange(start, start + len(tokens), device=self._device)[None]
        out = self._model(input_ids=ids, position_ids=positions, past_key_values=cache, **self._options)
        return torch.as_tensor(out.logits[:, -1].float())

    @staticmethod
    def _cut(cache: Any, length: int) -> None:
        surplus = cache.get_seq_length() - length
        if surplus > 0:
            cache.crop(-surplus)  # from the end: the form that all releases of transformers 5 take
