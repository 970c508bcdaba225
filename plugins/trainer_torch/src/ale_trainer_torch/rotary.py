"""Rotary positions whose frequencies depend on a sequence's length (the types longrope and dynamic).

transformers takes them from the longest sequence of a pass, and dynamic ones from longer passes before it too. Here
each sequence of a packed row gets those of its own length, as if it were passed alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def use_own_lengths(model: nn.Module) -> bool:
    """Let each sequence of a packed row have rotary positions of its own length. Return whether the model has such
    positions: sequences that are padded instead of packed would get wrong ones."""
    found = [(name, module) for name, module in model.named_modules() if _depends_on_length(module)]
    for name, module in found:
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, OwnLengths(module))
    return bool(found)


class OwnLengths(nn.Module):
    """A rotary embedding that is asked for one sequence after another. A sequence begins at position 0."""

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, x: Tensor, position_ids: Tensor, *args: Any, **named: Any) -> tuple[Tensor, ...]:
        """Return what the embedding returns (cosines and sines) of all sequences, end to end."""
        begins = (position_ids[0] == 0).nonzero().flatten().tolist()
        lengths = [end - begin for begin, end in zip(begins, [*begins[1:], position_ids.shape[1]], strict=True)]
        parts = []
        for positions in torch.split(position_ids, lengths or [position_ids.shape[1]], dim=1):
            self._forget()
            parts.append(self.rotary(x, positions, *args, **named))
        return tuple(torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))

    def _forget(self) -> None:
        """Take back what an earlier sequence has changed."""
        for name, frequencies in list(self.rotary.named_buffers(recurse=False)):
            if name.endswith("original_inv_freq"):
                prefix = name.removesuffix("original_inv_freq")
                self.rotary.register_buffer(f"{prefix}inv_freq", frequencies.clone(), persistent=False)
                longest = f"{prefix}max_seq_len_cached"
                if hasattr(self.rotary, longest):
                    setattr(self.rotary, longest, self.rotary.original_max_seq_len)


def _depends_on_length(module: nn.Module) -> bool:
    kinds: Any = getattr(module, "rope_type", None)
    if not hasattr(module, "original_max_seq_len"):
        return False
    return any(
        kind == "longrope" or "dynamic" in str(kind)
        for kind in (kinds.values() if isinstance(kinds, dict) else [kinds])
    )
