"""Captured tensors: real torch tensors that a user's function reads at traced indices."""

import math
from collections.abc import Callable
from typing import Any

import torch

from attn_mlir.capture_kinds import CaptureKind
from attn_mlir.frontend import ops, scope
from attn_mlir.frontend.classes import seen_class
from attn_mlir.frontend.links import LINKS
from attn_mlir.frontend.node import Kind, Node, Source
from attn_mlir.frontend.scope import Captured
from attn_mlir.frontend.values import Value, wrap
from attn_mlir.frontend.values import lift as lift_value

ELEMENTS: dict[torch.dtype, tuple[str, Kind]] = {
    torch.float32: ("f32", "float"), torch.float16: ("f16", "float"), torch.bfloat16: ("bf16", "float"), torch.float64: ("f64", "float"),
    torch.int8: ("i8", "int"), torch.int16: ("i16", "int"), torch.int32: ("i32", "int"), torch.int64: ("i64", "int"),
    torch.uint8: ("u8", "int"), torch.bool: ("i1", "bool"),
}  # fmt: skip


class CapturedTensor:
    """A captured tensor, possibly with its first dimensions already indexed: `bias[b]`."""

    stands_for_tensor = True
    __class__ = property(lambda self: seen_class(self, CapturedTensor))  # type: ignore[assignment]

    def __init__(self, captured: Captured, kind: Kind, shape: tuple[int, ...] | None = None, indices: tuple[Node, ...] = ()) -> None:
        self._captured = captured
        self._kind: Kind = kind
        self._sizes = shape
        self._indices = indices

    def __getitem__(self, index: Any) -> Any:
        """One number once every dimension has an index."""
        given = index if isinstance(index, tuple) else (index,)
        whole = [item for item in given if item is None or item is Ellipsis or isinstance(item, slice)]
        if whole and len([item for item in given if item is not None and item is not Ellipsis]) <= self.rank:
            return LINKS.sliced(self, given)
        indices = (*self._indices, *(self._index(len(self._indices) + i, item) for i, item in enumerate(given)))
        if len(indices) > self._captured.rank:
            raise scope.fail(
                f"{len(indices)} indices into `{self._captured.name}`, which has {self._dimensions()}",
                "leave the extra ones out",
            )
        indexed = CapturedTensor(self._captured, self._kind, self._sizes, indices)
        return indexed if len(indices) < self._captured.rank else wrap(indexed.element())

    def at(self, *indices: Node) -> Node:
        """The node that reads the element at `indices`, which are known to be in bounds."""
        return CapturedTensor(self._captured, self._kind, self._sizes, indices).element()

    def element(self) -> Node:
        """The node that reads the element; every dimension has its index."""
        scope.current().captures.setdefault(self._captured.source, self._captured)
        nonnegative = self._captured.element == "u8"
        return ops.make("tensor.extract", self._kind, *self._indices, attribute=self._captured, nonnegative=nonnegative)

    @property
    def rank(self) -> int:
        """The number of dimensions that are not indexed yet."""
        return self._captured.rank - len(self._indices)

    def left(self) -> range:
        """The dimensions that have no index yet."""
        return range(len(self._indices), self._captured.rank)

    @property
    def shape(self) -> tuple[Value, ...]:
        """The sizes; they count as constants only where Python needs a concrete number."""
        return tuple(wrap(self._size(dim)) for dim in range(len(self._indices), self._captured.rank))

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    @property
    def ndim(self) -> int:
        return self.rank

    def dim(self) -> int:
        return self.rank

    def numel(self) -> Any:
        """The number of elements, of sizes that count as constants only where Python needs a concrete number."""
        return math.prod(self.shape[1:], start=self.shape[0]) if self.rank else 1

    nelement = numel

    def __len__(self) -> int:
        return int(self.shape[0])

    def _size(self, dim: int) -> Node:
        trace = scope.current()
        trace.captures.setdefault(self._captured.source, self._captured)
        known = None if self._sizes is None else self._sizes[dim]
        return trace.size(("size", self._captured.source, dim), f"{self._captured.name}_{dim}", known)

    def _index(self, dim: int, item: Any) -> Node:
        """The index as PyTorch means it: negative ones count from the end."""
        name = self._captured.name
        if isinstance(item, slice) or item is None or item is Ellipsis:
            raise scope.fail(f"`{name}` is indexed with {_written(item)}", self._advice())
        if isinstance(item, (list, tuple)):
            raise scope.fail(f"`{name}` is indexed with a {type(item).__name__}", self._advice())
        node = lift_value(item)
        if node.kind != "int":
            raise scope.fail(f"`{name}` is indexed with a {node.kind}", "indices are integers: cast with .int()")
        if node.nonnegative or dim >= self._captured.rank:
            return node
        wrapped = ops.add(node, self._size(dim))
        if node.is_constant:
            return wrapped
        return ops.select(ops.compare("lt", node, ops.constant(0)), wrapped, node)

    def _dimensions(self) -> str:
        return f"{self._captured.rank} dimension{'s' * (self._captured.rank != 1)}"

    def _advice(self) -> str:
        name, rank = self._captured.name, self._captured.rank
        example = {1: "kv_idx", 2: "q_idx, kv_idx", 3: "h, q_idx, kv_idx", 4: "b, h, q_idx, kv_idx"}.get(rank, ", ".join(["i"] * rank))
        return f"`{name}` has {self._dimensions()}; read one number with one index for each, such as {name}[{example}]"

    def _whole(self, *_: Any, **__: Any) -> Any:
        raise scope.fail(f"computes with all of `{self._captured.name}`", self._advice())

    __bool__ = __float__ = __int__ = __index__ = _whole  # operators are those of `vectors`

    def __iter__(self) -> Any:
        return iter(LINKS.vector(self))

    def __setitem__(self, index: Any, value: Any) -> None:
        raise scope.fail(f"changes `{self._captured.name}` in place", "captured tensors are read only; compute a new value instead")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(LINKS.vector(self), name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return LINKS.torch(func, args, kwargs or {})


def _written(item: Any) -> str:
    return {type(None): "None", type(Ellipsis): "..."}.get(type(item), "a slice")


def capture(tensor: torch.Tensor) -> CapturedTensor:
    """The captured tensor that stands for `tensor`."""
    with torch._C.DisableTorchFunction():  # what is asked here is no part of the trace
        return _capture(tensor)


def _capture(tensor: torch.Tensor) -> CapturedTensor:
    trace = scope.current()
    known = trace.tensors.get(id(tensor))
    if tensor.dtype not in ELEMENTS:
        name = f"`{known[1]}`" if known else "a tensor computed of captured ones"
        raise scope.fail(
            f"{name} has dtype {tensor.dtype}", f"use one of {', '.join(str(dtype).removeprefix('torch.') for dtype in ELEMENTS)}"
        )
    element, kind = ELEMENTS[tensor.dtype]
    source: Source
    if known is not None:
        source, name, constant = *known, None
    else:
        trace.reusable = trace.reusable and id(tensor) in trace.fresh
        trace.keep.append(tensor)
        source, name, constant = ("constant", id(tensor)), "captured", tensor
    return CapturedTensor(Captured(source, name, CaptureKind.TENSOR, element, tensor.dim(), constant), kind, tuple(tensor.shape))


def lift(x: Any) -> Node:
    """The node of a captured tensor of rank 0; anything else is an error."""
    if isinstance(x, torch.SymInt):
        return _symbolic(x)
    if isinstance(x, torch.SymFloat):  # which operators take as tensors only
        x = torch.scalar_tensor(x, dtype=torch.float64, device="cpu")  # type: ignore[arg-type]
    if isinstance(x, torch.Tensor):
        with torch._C.DisableTorchFunction():
            constant = id(x) in scope.current().fresh and x.dim() == 0
        if scope.current().changed:
            x.dim()  # which is checked, as every use of a tensor
        if constant:
            return ops.constant(x.item())
        x = capture(x)
    if isinstance(x, CapturedTensor):
        if x.rank:
            x._whole()
        return x.element()
    converted = _numpy_scalar(x)
    if converted is not None:
        return ops.constant(converted)
    raise scope.fail(f"uses a {type(x).__name__} as a number", "use numbers, traced values and torch tensors")


def _symbolic(x: torch.SymInt) -> Node:
    """The node of an integer that torch.export leaves open, such as a length."""
    trace = scope.current()
    trace.reusable = False
    trace.keep.append(x)
    return trace.capture(Captured(("constant", id(x)), "captured", CaptureKind.INT, constant=x))


def _numpy_scalar(x: Any) -> bool | int | float | None:
    import numpy

    if isinstance(x, (numpy.generic, numpy.ndarray)) and x.ndim == 0 and x.dtype.kind in "biuf":
        return x.item()
    return None


Reader = Callable[[Any], Any]
