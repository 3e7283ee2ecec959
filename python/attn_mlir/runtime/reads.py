"""How programs read captured tensors: checks of bounds, done once for tensors and sizes that were seen before."""

import functools
import weakref
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import torch

from attn_mlir import forks
from attn_mlir.backends.graph_capture import is_captured
from attn_mlir.mlir import LOCK
from attn_mlir.passes.intervals.capture_bounds import make_plan

_LIMIT = 512
_SIZES = ("B", "Hq", "Hkv", "Sq", "Skv", "D", "Dv")


class LookedAt:
    """Tensors whose elements were looked at, by a key; those on a GPU, which has to be waited for, once until torch changes them."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, list[tuple[weakref.ref[torch.Tensor], int]]] = {}
        self._lock = forks.lock()

    def once(self, key: Hashable, tensors: Sequence[torch.Tensor], look: Callable[[], Any]) -> None:
        """Calls `look` where it has to; never while a CUDA graph is captured, where waiting is not allowed."""
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        if not devices:
            look()
        elif not any(map(is_captured, devices)):
            seen = self._seen.get(key, ())
            same = [ref() is tensor and version == _version(tensor) for (ref, version), tensor in zip(seen, tensors, strict=False)]
            if len(seen) == len(tensors) and all(same):
                return
            look()
            with self._lock:
                if len(self._seen) >= _LIMIT:
                    self._seen.clear()
                self._seen[key] = [(weakref.ref(tensor), _version(tensor)) for tensor in tensors]


def _version(tensor: torch.Tensor) -> int:
    """A number that changes when torch changes the elements; inference tensors do not count changes."""
    return -1 if tensor.is_inference() else tensor._version


class Reads:
    """How a program reads its captured tensors, and for which sizes that was found to be in bounds."""

    def __init__(self, text: str, names: tuple[str, ...]) -> None:
        with LOCK:
            self._plan = make_plan(text, names)
        self._passed: set[Hashable] = set()
        self._looked = LookedAt()
        self._lock = forks.lock()

    @property
    def by_length(self) -> bool:
        """Whether the length of a sequence determines where something is read."""
        return self._plan.by_length

    def from_data(self, but: Collection[int] = ()) -> bool:
        """Whether elements of a captured tensor determine where something is read, `but` for captures of these numbers."""
        return any([read.from_data and read.tensor not in but for read in self._plan.reads])

    def check(self, sizes: dict[str, int], captures: Sequence[Any], key: Hashable) -> None:
        """`key`: see `CaptureKinds.key`. Raises ArgumentError."""
        if not self._plan.reads:
            return
        problem = *[sizes[name] for name in _SIZES], sizes.get("H", sizes["Hkv"])
        key = (problem, key)
        if key not in self._passed:
            self._plan.check(problem, captures)
            with self._lock:
                if len(self._passed) >= _LIMIT:
                    self._passed.clear()
                self._passed.add(key)
        if self._plan.has_data_checks:
            watched = [value for value in captures if isinstance(value, torch.Tensor) and not value.is_floating_point()]
            self._looked.once(key, watched, lambda: self._plan.check_data(problem, captures))


@functools.lru_cache(maxsize=_LIMIT)
def reads_of(text: str, names: tuple[str, ...]) -> Reads:
    """The reads of a program of this text, whose captures have these names."""
    with LOCK:
        return Reads(text, names)
