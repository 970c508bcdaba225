"""Gives freed memory back to the system, so that another process can have it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

import torch


def give_memory_back() -> None:
    """Free what only reference cycles hold, and return what the allocators keep for later."""
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where no GPU is in use
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):  # another C library than glibc keeps little
            ctypes.CDLL(None).malloc_trim(0)
