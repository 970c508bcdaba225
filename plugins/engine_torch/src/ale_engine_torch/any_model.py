"""Any causal LM that transformers can load, for architectures that `decoder.py` does not know.

It keeps one cache a slot and runs the rows one after the other: correct for every model, several times slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class AnyModelDecoder:
    """The interface of `LlamaDecoder` over `AutoModelForCausalLM`."""

    def __init__(self, folder: Path, slots: int, max_context: int, device: torch.device, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True, dtype=dtype)
        self._model = model.to(device).eval()
        self._device = device
        self._caches: list[Any] = [None] * slots
        self.max_context = max_context

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over weights by name; tied ones may be left out."""
        self._model.load_state_dict(dict(weights), strict=False)

    def swap(self, a: int, b: int) -> None:
        """Exchange two slots."""
        self._caches[a], self._caches[b] = self._caches[b], self._caches[a]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Give `target` a copy of the first `length` positions of `source`."""
        import copy

        self._caches[target] = copy.deepcopy(self._caches[source])
        self._caches[target].crop(length)

    def decode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """One token for each of the rows `0..n`."""
        rows = zip(tokens.tolist(), positions.tolist(), strict=True)
        return torch.cat([self._step(row, [token], position) for row, (token, position) in enumerate(rows)])

    def prefill(self, slots: Sequence[int], tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Write each slot's tokens from its start on; logits of the last ones."""
        rows = zip(slots, tokens, starts, strict=True)
        return torch.cat([self._step(slot, list(row), start) for slot, row, start in rows])

    def _step(self, slot: int, tokens: list[int], start: int) -> Tensor:
        from transformers import DynamicCache

        cache = self._caches[slot]
        if start == 0 or cache is None:
            cache = self._caches[slot] = DynamicCache(config=self._model.config)
        elif cache.get_seq_length() > start:
            cache.crop(start)
        ids = torch.tensor([tokens], device=self._device)
        positions = torch.arange(start, start + len(tokens), device=self._device)[None]
        out = self._model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True)
        return torch.as_tensor(out.logits[:, -1].float())
