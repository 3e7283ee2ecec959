"""What a scan of the user's functions has found: the key of what shapes the trace, and the leaves, whose values may change."""

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch

from attn_mlir.frontend.watch import Watch

_CONTAINER_LIMIT = 64
_ARRAY_LIMIT = 1 << 16


class Findings:
    """The key and leaves so far. `detailed` also records names and places: for tracing, not for every call."""

    __slots__ = (
        "_detailed", "_keep", "_objects", "_seen", "_tensors", "generators", "key", "leaf_of", "leaves", "names", "reusable", "stateful",
        "watch",
    )  # fmt: skip

    def __init__(self, detailed: bool = False) -> None:
        self.key: list[Hashable] = []
        self.leaves: list[Any] = []
        self.reusable = True
        """False where something was found whose changes the key would not show."""
        self.watch: Watch | None = Watch()
        """Tells whether another scan would find the same; None where that takes another scan."""
        self.generators: list[Any] = []
        """Generators of random numbers."""
        self.stateful = False
        """Whether something was found that reads clocks or other state of the process."""
        self.names: list[str] = []
        """The variable of each leaf; only if `detailed`."""
        self.leaf_of: dict[tuple[int, str], int] = {}
        """(id of the function, variable) to the leaf of a captured scalar; only if `detailed`."""
        self._detailed = detailed
        self._objects: list[tuple[Any, set[str]]] = []
        self._seen: dict[tuple[int, bool], int] = {}
        self._keep: list[Any] = []
        self._tensors: dict[int, int] = {}

    def _scalar(self, x: Any, name: str, rebindable: bool) -> None:
        whole = isinstance(x, (int, np.integer))
        if not rebindable or not (whole or math.isfinite(x)):
            self.key.append((type(x), repr(x)))
            return
        self.key.append("int" if whole else "float")
        self._leaf(x, name)

    def _tensor(self, x: Any, kind: Hashable, name: str) -> None:
        first = self._tensors.setdefault(id(x), len(self.leaves))
        if first < len(self.leaves):
            self.key.append(first)
            return
        self.key.append(kind)
        self._leaf(x, name)
        if isinstance(x, torch.Tensor):
            if self.watch is not None:
                self.watch.tensors.append((x, x.dtype, x.dim()))
            if x.__dict__:
                self._objects.append((x, set()))

    def _contents(self, x: np.ndarray) -> None:
        if x.nbytes > _ARRAY_LIMIT or x.dtype.hasobject:
            self.reusable = False
        else:
            self.key.append((x.shape, x.tobytes()))

    def _leaf(self, x: Any, name: str) -> None:
        self.leaves.append(x)
        if self._detailed:
            self.names.append(name)

    def _opened(self, x: Any, rebindable: bool) -> bool:
        """Whether to look into a container now: not again, and not if it is large."""
        if len(x) > _CONTAINER_LIMIT:
            self.reusable = False
            return False
        return not self._again(x, rebindable)

    def _again(self, x: Any, rebindable: bool) -> bool:
        """Whether `x` was met before; the key then says where."""
        known = self._seen.get((id(x), rebindable))
        if known is None:
            self._seen[(id(x), rebindable)] = len(self._seen)
            self._keep.append(x)  # so that no other object gets its identity
            return False
        self.key.append(("again", known))
        return True


def is_number(x: Any) -> bool:
    """Whether `x` is a number that can become an argument: not of a class of the user's, which may compute in its own way."""
    return type(x) in (int, float) or isinstance(x, (np.integer, np.floating))
