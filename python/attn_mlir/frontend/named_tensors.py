"""Tensors that a program declares by name and dimensions, and gets with each call.

Where one is used like a number, it is read at the current position, dimension by dimension; it can also be indexed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attn_mlir.capture_kinds import CaptureKind
from attn_mlir.errors import TraceError
from attn_mlir.frontend import ops, scope
from attn_mlir.frontend.node import Kind, Node
from attn_mlir.frontend.scope import Captured, Scope, Trace
from attn_mlir.frontend.tensors import ELEMENTS, CapturedTensor
from attn_mlir.frontend.values import Value

Dim = int | str

VOCABULARY: Mapping[str, str] = {
    "batch": "B", "heads": "Hq", "heads_kv": "Hkv", "seq_len": "Sq", "seq_len_kv": "Skv", "dimqk": "D", "dimv": "Dv",
}  # fmt: skip
"""The names of dimensions, and the sizes they stand for."""

_ROW = ("", "batch", "heads", "seq_len")
_DIMS: Mapping[str, Sequence[str]] = {
    "query": (*_ROW, "dimqk"),
    "key": ("", "batch", "heads_kv", "seq_len_kv", "dimqk"),
    "value": ("", "batch", "heads_kv", "seq_len_kv", "dimv"),
    "score": (*_ROW, "seq_len_kv"),
    "mask": (*_ROW[1:], "seq_len_kv"),
    "step": _ROW,
    "finalize": _ROW,
    "weight": (*_ROW, "seq_len_kv"),
    "dscore": ("", *_ROW, "seq_len_kv"),
}
"""Along which dimension each argument of a piece runs."""

LINEAR_DIMS: Mapping[str, Sequence[str]] = {
    "query": (*_ROW, "dimqk"), "key": (*_ROW, "dimqk"), "value": (*_ROW, "dimv"), "decay": _ROW, "erase": (*_ROW, "dimqk"),
}  # fmt: skip
"""The same for the pieces of a linear attention."""


class SymbolicTensor(Value):
    """A named tensor with the dimensions `shape`: words of the vocabulary, or numbers."""

    __slots__ = ("dims", "name")

    def __init__(self, varname: str, shape: Sequence[Dim]) -> None:
        self.name = varname
        self.dims = tuple(1 if dim == "1" else dim for dim in shape)

    def scan_key(self) -> tuple[str, tuple[Dim, ...]]:
        return self.name, self.dims

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.dims)

    def __deepcopy__(self, memo: Any) -> "SymbolicTensor":
        return type(self)(self.name, self.dims)

    @property
    def _node(self) -> Node:  # type: ignore[override]
        """The element at the current position."""
        trace = _trace(self)
        return self._captured().at(*(trace.position(self, dim) for dim in self.dims))

    def _captured(self) -> CapturedTensor:
        return _trace(self).named(self)

    def __getitem__(self, index: Any) -> Any:
        return self._captured()[index]

    @property
    def shape(self) -> tuple[Value, ...]:
        return self._captured().shape

    def size(self, dim: int | None = None) -> Any:
        return self._captured().size(dim)

    def __len__(self) -> int:
        return len(self._captured())

    def dim(self) -> int:
        return len(self.dims)

    @property
    def ndim(self) -> int:
        return len(self.dims)

    def __repr__(self) -> str:
        return f"SymbolicTensor({self.name!r}, {self.dims!r})"

    def _describe(self) -> str:
        return f"`{self.name}`"


class NamedTrace(Trace):
    """A trace in which named tensors can be read; `dtypes` are those of the tensors it will be called with.

    `dims` tells along which dimension each argument of a piece runs.
    """

    def __init__(self, dtypes: Mapping[str, torch.dtype], dims: Mapping[str, Sequence[str]] = _DIMS) -> None:
        super().__init__()
        self._dtypes = dtypes
        self._dims = dims
        self._owner: Scope | None = None
        self._arguments: list[Node] = []

    def argument(self, name: str, kind: Kind, *, varying: bool = False, nonnegative: bool = False) -> Node:
        """See `Trace.argument`."""
        if self._owner is not self.scope:
            self._owner, self._arguments = self.scope, []
        node = super().argument(name, kind, varying=varying, nonnegative=nonnegative)
        self._arguments.append(node)
        return node

    def named(self, tensor: SymbolicTensor) -> CapturedTensor:
        """The captured tensor of that name."""
        if tensor.name not in self._dtypes:
            raise scope.fail(f"reads the custom input `{tensor.name}`, which the call does not pass", "add it to custom_fwd_inputs")
        element, kind = ELEMENTS[self._dtypes[tensor.name]]
        return CapturedTensor(Captured(("custom", tensor.name), tensor.name, CaptureKind.TENSOR, element, len(tensor.dims)), kind)

    def position(self, tensor: SymbolicTensor, dim: Dim) -> Node:
        """Where the current position lies along dimension `dim` of a named tensor."""
        if dim == 1:
            return ops.constant(0)
        kind = self.scope.kind if self.scope else ""
        dims = self._dims.get(kind, ())
        if dim in dims:
            return self._arguments[dims.index(str(dim))]
        seen = ", ".join(repr(known) for known in dims if known)
        advice = f"positions here are along {seen}; index the tensor, as in {tensor.name}[...], to read another place"
        if kind == "step" and dim == "seq_len_kv":
            advice = "an online function sees a whole block of keys; use this tensor in score_mod"
        raise scope.fail(f"`{tensor.name}` has the dimension {dim!r}, along which there is no position", advice)


def _trace(tensor: SymbolicTensor) -> NamedTrace:
    trace = scope.current() if scope.is_tracing() else None
    if not isinstance(trace, NamedTrace):
        raise TraceError(f"the custom input `{tensor.name}` has a value only inside the functions that AttentionEngine takes")
    return trace
