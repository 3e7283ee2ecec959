"""Small tensors of traced values: what is left of a captured tensor where some of its dimensions have an index, as in `means[q_idx]`.

`(means[q_idx] - means[kv_idx]).pow(2).sum(-1)` is written out, element by element. Sizes are constants of the trace.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from attn_mlir.frontend import helps, methods, ops, reductions, scope, tensors, vocabulary
from attn_mlir.frontend.classes import seen_class
from attn_mlir.frontend.links import LINKS
from attn_mlir.frontend.tensors import CapturedTensor
from attn_mlir.frontend.values import Value, lift, value, wrap

LIMIT = 128
"""How many elements are written out."""
_OF_NUMBERS = frozenset({"item", "tolist", "get_reduce"})
_ADVICE = (
    f"up to {LIMIT} elements are written out: compute larger tensors before the call, or read one number, with an index for each dimension"
)


class Vector:
    """Traced values in the shape of a torch tensor of at least one dimension."""

    __slots__ = ("_items",)
    __array_priority__ = 2000

    stands_for_tensor = True
    __class__ = property(lambda self: seen_class(self, Vector))  # type: ignore[assignment]

    def __init__(self, items: np.ndarray) -> None:
        self._items = items

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._items.shape)

    @property
    def ndim(self) -> int:
        return self._items.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self._items.flat[0].dtype

    @property
    def device(self) -> Any:
        return scope.current().device

    @property
    def T(self) -> "Vector":
        return Vector(self._items.T)

    @property
    def mT(self) -> "Vector":
        return Vector(self._items.swapaxes(-1, -2))

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return (_made(self._items[i]) for i in range(len(self._items)))

    def __getitem__(self, index: Any) -> Any:
        items = index if isinstance(index, tuple) else (index,)
        if not all(item is None or item is Ellipsis or isinstance(item, (int, slice)) for item in items):
            raise scope.fail("indexes a tensor that is computed of traced values", "read the captured tensor at a traced index first")
        return _made(self._items[index])

    def __bool__(self) -> bool:
        raise scope.fail("asks for the truth of a tensor of traced values", "write .any() or .all(), and torch.where for the choice")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if _function(name) is None:
            error = helps.UnknownAttribute(f"a tensor of traced values has no attribute {name!r}", _ADVICE)
            raise scope.insist(error) if callable(getattr(torch.Tensor, name, None)) else error
        return lambda *args, **kwargs: call(name, self, *args, **kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return LINKS.torch(func, args, kwargs or {})


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "matmul")


def _changed(x: Any, name: str, other: Any) -> Any:
    """`x` after `x += other` and its like: whoever else has this tensor, or a part of it, sees the new numbers."""
    if isinstance(x, CapturedTensor):
        x[0] = other  # which is an error
    new = vector(call(name, x, other))
    if new.shape != x.shape:
        raise scope.fail(f"a change in place from shape {list(x.shape)} to {list(new.shape)}", "compute a new value instead")
    for old, number in zip(x._items.flat, new._items.flat, strict=True):
        old._node = number._node
    return x


def _operators(*kinds: type) -> None:
    for name in (*_ARITHMETIC, "lt", "le", "gt", "ge", "eq", "ne"):
        for kind in kinds if name in _ARITHMETIC else ():
            setattr(kind, f"__i{name}__", lambda self, other, name=name: _changed(self, name, other))
        for kind in kinds:
            setattr(kind, f"__{name}__", lambda self, other, name=name: call(name, self, other))
            setattr(kind, f"__r{name}__", lambda self, other, name=name: call(name, other, self))
    for kind in kinds:
        kind.__neg__ = lambda self: call("neg", self)  # type: ignore[attr-defined]
        kind.__abs__ = lambda self: call("abs", self)  # type: ignore[attr-defined]
        kind.__invert__ = lambda self: call("invert", self)  # type: ignore[attr-defined]
        kind.__hash__ = object.__hash__  # type: ignore[assignment]


def is_array(x: Any) -> bool:
    """Whether `x` has dimensions: a tensor, a captured one of which some have no index, or a vector."""
    if isinstance(x, Vector):
        return True
    if isinstance(x, CapturedTensor):
        return x.rank > 0
    if isinstance(x, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return x.dim() > 0
    return False


def vector(x: Any) -> Vector:
    """A tensor as a vector. Raises TraceError where it is too large."""
    if isinstance(x, Vector):
        return x
    captured = x if isinstance(x, CapturedTensor) else tensors.capture(x)
    sizes = [captured._size(dim) for dim in captured.left()]
    if any(size.known is None for size in sizes) or math.prod([int(size.known or 0) for size in sizes]) > LIMIT:
        captured._whole()
    shape = [int(scope.current().concrete(size)) for size in sizes]
    return Vector(_filled(shape, lambda place: captured[place]))


def sliced(captured: CapturedTensor, items: Sequence[Any]) -> Any:
    """A captured tensor at `items`, among which are slices, None or an ellipsis."""
    places = [i for i, item in enumerate(items) if item is Ellipsis] or [len(items)]
    missing = captured.rank - sum([item is not None and item is not Ellipsis for item in items])
    items = [*items[: places[0]], *[slice(None)] * missing, *items[places[0] + 1 :]]
    chosen: list[Any] = []
    for dim, item in zip(captured.left(), [item for item in items if item is not None], strict=True):
        if isinstance(item, slice):
            size = captured._size(dim)
            if size.known is None:
                captured._whole()
            item = range(int(scope.current().concrete(size)))[item]
        chosen.append(item)
    free = [item for item in chosen if isinstance(item, range)]
    if math.prod(map(len, free)) > LIMIT:
        captured._whole()

    def at(place: tuple[int, ...]) -> Any:
        left = iter(place)
        return captured[tuple([item[next(left)] if isinstance(item, range) else item for item in chosen])]

    kept = [item for item in items if item is None or isinstance(item, slice)]
    found = _filled([len(item) for item in free], at)
    return _made(found[tuple([None if item is None else slice(None) for item in kept])])


def _filled(shape: Sequence[int], at: Callable[[tuple[int, ...]], Any]) -> np.ndarray:
    items = np.full(shape, None, dtype=object)
    for place in np.ndindex(*shape):
        items[place] = at(place)
    return items


def _made(items: Any) -> Any:
    return Vector(items) if isinstance(items, np.ndarray) and items.ndim else items if isinstance(items, Value) else items.item()


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """The torch function or method `name`, of which an argument is an array."""
    function = _function(name)
    if function is None:
        raise scope.refuse(f"torch.{name.strip('_')} of a tensor of traced values is not known", _ADVICE)
    try:
        return function(*args, **kwargs)
    except (ValueError, IndexError, np.exceptions.AxisError) as error:
        raise scope.fail(f"{name.strip('_')} of tensors of traced values: {error}", "shapes are those of torch") from error


def _function(name: str) -> Callable[..., Any] | None:
    plain = name.strip("_")
    if name.endswith("_") and not name.startswith("__"):
        return None
    known = _FUNCTIONS.get(plain) or _FUNCTIONS.get(methods.aliased(plain))
    if known is not None:
        return known
    function = methods.METHODS.get(methods.aliased(plain))
    if function is None or getattr(function, "__module__", "") == reductions.__name__ or plain in _OF_NUMBERS:
        return None
    return lambda *args, **kwargs: _elementwise(plain, args, kwargs)


def _elementwise(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    arrays = {i: vector(x)._items for i, x in enumerate(args) if is_array(x)}
    named = {key: vector(x)._items for key, x in kwargs.items() if is_array(x)}
    shape = np.broadcast_shapes(*[x.shape for x in (*arrays.values(), *named.values())])
    if math.prod(shape) > LIMIT:
        raise scope.fail(f"{name} gives {math.prod(shape)} elements of traced values", _ADVICE)
    arrays = {i: np.broadcast_to(x, shape) for i, x in arrays.items()}
    named = {key: np.broadcast_to(x, shape) for key, x in named.items()}

    def at(place: tuple[int, ...]) -> Any:
        here = [arrays[i][place] if i in arrays else x for i, x in enumerate(args)]
        return value(methods.call(name, "torch", *here, **{key: named[key][place] if key in named else x for key, x in kwargs.items()}))

    return Vector(_filled(shape, at))


def _reduction(function: Callable[[list[Value]], Value]) -> Callable[..., Any]:
    """A reduction over some dimensions, of what it does with the elements that come together."""

    def reduced(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, axis: Any = None) -> Any:
        items, dim = vector(x)._items, axis if dim is None else dim
        if isinstance(dim, bool):
            raise scope.fail("a reduction whose second argument is a bool", "name it: correction=, keepdim=")
        chosen = range(items.ndim) if dim is None or dim in ((), []) else [dim] if isinstance(dim, int) else list(dim)
        axes = np.lib.array_utils.normalize_axis_tuple(chosen, items.ndim)
        kept = [axis for axis in range(items.ndim) if axis not in axes]
        turned = items.transpose(*kept, *axes).reshape([items.shape[axis] for axis in kept] + [-1])
        out = _filled([items.shape[axis] for axis in kept], lambda place: wrap(lift(function(list(turned[place])))))
        return _made(np.expand_dims(out, axes)) if keepdim else _made(out) if out.ndim else out[()]

    return reduced


def _prelu(x: Any, weight: Any) -> Any:
    """A weight of one element is one number, whatever its shape."""
    weight = vector(weight)
    one = weight._items.item() if weight._items.size == 1 else weight
    return methods.METHODS["prelu"](x, one) if isinstance(x, Value) and one is not weight else _elementwise("prelu", (x, one), {})


def _sum(items: list[Value]) -> Value:
    total = wrap(ops.cast(lift(items[0]), "int")) if items and lift(items[0]).kind == "bool" else items[0] if items else value(0.0)
    for item in items[1:]:
        total = total + item
    return total


def _conditions(items: list[Value]) -> list[Value]:
    return [wrap(ops.cast(ops.cast(lift(item), "bool"), "int")) for item in items]


def _product(items: list[Value]) -> Value:
    result = items[0] if items else value(1.0)
    for item in items[1:]:
        result = result * item
    return result


def _extremum(name: str) -> Callable[[list[Value]], Value]:
    """The greatest or the least element. Those that attain it share its gradient, as in torch."""

    def found(items: list[Value]) -> Value:
        best = items[0]
        for item in items[1:]:
            best = wrap(ops.extremum(name, lift(best), lift(item)))
        if lift(best).kind != "float" or len(items) == 1:
            return best
        best = vocabulary.detach(best)
        attain = [vocabulary.where(item == best, 1.0, 0.0) for item in items]
        count = _sum(attain)
        return _sum([best, *[wrap(ops.slope(lift(item), lift(one / count))) for item, one in zip(items, attain, strict=True)]])

    return found


def _whole_extremum(name: str) -> Callable[..., Any]:
    def function(x: Any, other: Any = None, **options: Any) -> Any:
        if isinstance(other, int) or options:
            raise scope.fail(f"{name} with dim= gives values and indices in torch", f"write x.a{name}(dim=-1) for the values")
        return _FUNCTIONS[f"a{name}"](x) if other is None else _elementwise(f"{name}imum", (x, other), {})

    return function


def _mean(items: list[Value]) -> Value:
    return _sum(items) / float(len(items))


def _variance(then: Callable[[Value], Value]) -> Callable[..., Any]:
    def function(x: Any, dim: Any = None, *, correction: float = 1, keepdim: bool = False) -> Any:
        def of(items: list[Value]) -> Value:
            centre = _mean(items)
            return then(_sum([(item - centre) * (item - centre) for item in items]) / float(len(items) - correction))

        return _reduction(of)(x, dim, keepdim)

    return function


def _norm(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, *, ord: Any = None, **_: Any) -> Any:
    order = reductions._order(p if ord is None else ord)
    sizes = _elementwise("abs", (x,), {})
    if math.isinf(order):
        return _FUNCTIONS["amax" if order > 0 else "amin"](sizes, dim, keepdim)
    if order == 1.0:
        return _FUNCTIONS["sum"](sizes, dim, keepdim)
    if order != 2.0:
        raise scope.fail(f"a norm of order {p!r} of a tensor of traced values", "use 1, 2 or infinity, or write it with sums")
    return _reduction(lambda items: reductions._root(_sum([item * item for item in items])))(x, dim, keepdim)


def _dot(a: Any, b: Any) -> Any:
    return _FUNCTIONS["sum"](call("mul", a, b), -1)


def _matmul(a: Any, b: Any) -> Any:
    left, right = vector(a)._items, vector(b)._items
    if left.ndim == 1 or right.ndim == 1:
        return _dot(Vector(left), Vector(right if right.ndim == 1 else right.swapaxes(-1, -2)))
    return _dot(Vector(left[..., :, None, :]), Vector(right.swapaxes(-1, -2)[..., None, :, :]))


def _softmax(x: Any, dim: int = -1, **_: Any) -> Any:
    e = call("exp", call("sub", x, call("detach", _FUNCTIONS["amax"](x, dim, True))))
    return call("div", e, _FUNCTIONS["sum"](e, dim, True))


def _shaped(function: Callable[..., np.ndarray]) -> Callable[..., Any]:
    return lambda x, *args, **kwargs: _made(function(vector(x)._items, *args, **kwargs))


def _sizes_of(shape: tuple[Any, ...]) -> Any:
    return shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape


def _squeezed(items: np.ndarray, dim: Any = None) -> np.ndarray:
    return items if dim is not None and items.shape[dim] != 1 else items.squeeze(dim)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "sum": _reduction(_sum), "prod": _reduction(_product), "mean": _reduction(_mean),
    "amax": _reduction(_extremum("max")), "amin": _reduction(_extremum("min")),
    "max": _whole_extremum("max"), "min": _whole_extremum("min"),
    "any": _reduction(lambda items: _sum(_conditions(items)) > 0), "all": _reduction(lambda items: _product(_conditions(items)) > 0),
    "var": _variance(lambda x: x), "std": _variance(reductions._root),
    "norm": _norm, "linalg_vector_norm": _norm, "softmax": _softmax,
    "dot": _dot, "inner": _dot, "vdot": _dot, "linalg_vecdot": _dot, "matmul": _matmul, "mv": _matmul, "mm": _matmul,
    "size": lambda x, dim=None: vector(x).shape if dim is None else vector(x).shape[dim], "dim": lambda x: vector(x).ndim,
    "numel": lambda x: vector(x)._items.size, "flatten": _shaped(lambda x: x.reshape(-1)),
    "reshape": _shaped(lambda x, *shape: x.reshape(_sizes_of(shape))), "view": _shaped(lambda x, *shape: x.reshape(_sizes_of(shape))),
    "unsqueeze": _shaped(np.expand_dims), "squeeze": _shaped(_squeezed),
    "transpose": _shaped(np.swapaxes), "permute": _shaped(lambda x, *order: x.transpose(_sizes_of(order))),
    "index": methods.METHODS["index"],
    "prelu": _prelu,
    "unbind": lambda x, dim=0: tuple(_made(part) for part in np.moveaxis(vector(x)._items, dim, 0)),
}  # fmt: skip
_operators(Vector, CapturedTensor)
