"""Names to functions: the methods of traced values, and torch's and numpy's functions by their names."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from attn_mlir.frontend import ops, scope, vocabulary
from attn_mlir.frontend.node import Kind
from attn_mlir.frontend.values import Value, lift, value, wrap

_KINDS: dict[Any, Kind] = {
    torch.float32: "float", torch.float64: "float", torch.float16: "float", torch.bfloat16: "float", float: "float",
    torch.int32: "int", torch.int64: "int", int: "int", torch.bool: "bool", bool: "bool",
}  # fmt: skip
_DTYPES: dict[Kind, torch.dtype] = {"float": torch.float32, "int": torch.int64, "bool": torch.bool}


def to(x: Any, dtype: Any = None, *rest: Any, **options: Any) -> Value:
    """`x.to(dtype)`. Floats are f32 and integers 64 bit whatever their nominal width; devices are ignored."""
    dtype = options.get("dtype", dtype)
    if isinstance(dtype, (str, torch.device)) or dtype is None:
        return to(x, *rest) if rest else value(x)
    if isinstance(dtype, (Value, torch.Tensor)):
        dtype = dtype.dtype
    if dtype not in _KINDS:
        raise scope.fail(f"a cast to {dtype}", "use torch.float32, torch.int32, torch.int64 or torch.bool")
    return wrap(ops.cast(lift(x), _KINDS[dtype]))


def _check_dim(dim: Any) -> None:
    if dim not in (None, -1) and dim != (-1,) and dim != [-1]:
        raise scope.fail(f"a reduction over dim={dim!r}", "a row function reduces over the keys of the row: leave dim out, or use dim=-1")


def _reduce(kind: str, x: Any) -> Value:
    return wrap(ops.reduce(kind, lift(x)))


def sum_(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    _check_dim(dim)
    return _reduce("sum", x)


def mean(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    """The sum over the present keys divided by their number."""
    _check_dim(dim)
    return _reduce("sum", x) / _reduce("sum", 1.0)


def amax(x: Any, dim: Any = None, keepdim: bool = False) -> Value:
    _check_dim(dim)
    return _reduce("max", x)


def amin(x: Any, dim: Any = None, keepdim: bool = False) -> Value:
    _check_dim(dim)
    return _reduce("min", x)


def _extremum(name: str) -> Callable[..., Value]:
    """torch's max and min: of the row with one argument, elementwise with two."""

    def function(x: Any, other: Any = None, *, dim: Any = None, keepdim: bool = False) -> Value:
        if other is not None:
            return wrap(ops.extremum(name, lift(x), lift(other)))
        if dim is not None:
            raise scope.fail(f"{name} with dim= gives values and indices in torch", f"write x.{name}() or x.a{name}(dim=-1) for the value")
        return _reduce(name, x)

    return function


def any_(x: Any) -> Value:
    return _reduce("max", to(x, bool)) > 0.5


def all_(x: Any) -> Value:
    return _reduce("min", to(x, bool)) > 0.5


def logsumexp(x: Any, dim: Any = None, keepdim: bool = False) -> Value:
    _check_dim(dim)
    largest = _reduce("max", x)
    return largest + vocabulary.log(_reduce("sum", vocabulary.exp(value(x) - largest)))


def softmax(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Value:
    _check_dim(dim)
    e = vocabulary.exp(value(x) - _reduce("max", x))
    return e / _reduce("sum", e)


def get_reduce(x: Any, kind: str) -> Value:
    """A reduction over the row by name: sum, max, min, abssum or mean."""
    reductions = {"sum": sum_, "max": amax, "min": amin, "mean": mean, "abssum": lambda x: sum_(abs(value(x)))}
    if kind not in reductions:
        raise scope.fail(f"get_reduce({kind!r})", f"there are {', '.join(reductions)}")
    return reductions[kind](x)


def _like(fill: float) -> Callable[..., Value]:
    return lambda x, dtype=None, **_: to(fill if lift(x).kind == "float" else int(fill), dtype)


def _item(x: Any) -> Any:
    return value(x)._concrete(".item()", "leave it out: the value already is a number")


def _operator(name: str) -> Callable[..., Value]:
    return lambda a, b: getattr(value(a), f"__{name}__")(b)


_COMPARISONS = {"eq": "eq", "ne": "ne", "not_equal": "ne", "lt": "lt", "less": "lt", "le": "le", "less_equal": "le",
                "gt": "gt", "greater": "gt", "ge": "ge", "greater_equal": "ge"}  # fmt: skip
_ALIASES = {
    "multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div", "absolute": "abs", "negative": "neg", "clip": "clamp",
    "fix": "trunc", "expit": "sigmoid", "special_expit": "sigmoid", "power": "pow", "remainder": "mod",
    "floor_divide": "floordiv", "log_sigmoid": "logsigmoid", "special_erf": "erf", "swish": "silu", "bitwise_left_shift": "lshift",
    "bitwise_right_shift": "rshift", "left_shift": "lshift", "right_shift": "rshift", "bitwise_and": "and", "bitwise_or": "or",
    "bitwise_xor": "xor", "bitwise_not": "invert", "rint": "round", "special_exp2": "exp2", "special_round": "round", "conj": "positive",
    "special_log1p": "log1p", "special_expm1": "expm1", "sgn": "sign",
}  # fmt: skip

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(vocabulary, name) for name in (
        "exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "sqrt", "rsqrt", "tanh", "erf", "erfc", "sin", "cos", "tan", "sinh",
        "cosh", "floor", "ceil", "trunc", "sigmoid", "logsigmoid", "softplus", "square", "reciprocal", "sign", "isnan", "isinf", "isfinite",
        "relu", "relu6", "hardtanh", "leaky_relu", "elu", "silu", "gelu", "maximum", "minimum", "where", "masked_fill", "clamp",
        "add", "sub", "rsub", "div", "fmod", "logical_not", "logaddexp", "lerp", "detach",
    )},
    **{name: _operator(name) for name in ("mul", "mod", "floordiv", "pow", "lshift", "rshift", "and", "or", "xor", "truediv")},
    **{name: _operator(other) for name, other in _COMPARISONS.items()},
    "round": vocabulary.round_, "abs": lambda x: abs(value(x)), "neg": lambda x: -value(x), "positive": value,
    "invert": lambda x: ~value(x),
    "logical_and": vocabulary.logical("and"), "logical_or": vocabulary.logical("or"), "logical_xor": vocabulary.logical("xor"),
    "clamp_min": lambda x, min: vocabulary.clamp(x, min=min), "clamp_max": lambda x, max: vocabulary.clamp(x, max=max),
    "sum": sum_, "mean": mean, "amax": amax, "amin": amin, "max": _extremum("max"), "min": _extremum("min"), "any": any_, "all": all_,
    "logsumexp": logsumexp, "softmax": softmax,
    "zeros_like": _like(0.0), "ones_like": _like(1.0), "full_like": lambda x, fill_value, **_: value(fill_value),
    "clone": value, "contiguous": value, "scalar_tensor": lambda x, **_: value(x), "tensor": lambda x, dtype=None, **_: to(x, dtype),
}  # fmt: skip

METHODS: Mapping[str, Callable[..., Any]] = {
    **FUNCTIONS,
    "to": to, "type": to, "type_as": to, "get_reduce": get_reduce, "item": _item, "tolist": _item,
    "float": lambda x: to(x, torch.float32), "double": lambda x: to(x, torch.float32), "half": lambda x: to(x, torch.float32),
    "bfloat16": lambda x: to(x, torch.float32), "int": lambda x: to(x, torch.int64), "long": lambda x: to(x, torch.int64),
    "bool": lambda x: to(x, torch.bool), "cpu": value, "cuda": lambda x, *_: value(x),
    "where": lambda x, condition, other: vocabulary.where(condition, x, other),
    "dim": lambda x: 0, "numel": lambda x: 1, "size": lambda x: torch.Size([]), "is_floating_point": lambda x: lift(x).kind == "float",
}  # fmt: skip

_PROPERTIES: Mapping[str, Callable[[Value], Any]] = {
    "dtype": lambda x: _DTYPES[x._node.kind],
    "shape": lambda x: torch.Size([]),
    "ndim": lambda x: 0,
    "device": lambda x: scope.current().device,
    "requires_grad": lambda x: False,
}


def attribute(x: Value, name: str) -> Any:
    """`x.name`, as a torch tensor of rank 0 would have it."""
    if name in _PROPERTIES:
        return _PROPERTIES[name](x)
    if name.startswith("__"):
        raise AttributeError(f"a traced value has no attribute {name!r}")
    function = METHODS.get(_ALIASES.get(name, name))
    if function is not None:
        return lambda *arguments, **options: _checked(name, function, x, *arguments, **options)
    if name.endswith("_"):
        raise scope.fail(f".{name}() changes a value in place", f"write x = x.{name[:-1]}(...)")
    raise AttributeError(f"a traced value has no attribute {name!r}{_similar(name, METHODS)}")


def call(name: str, library: str, *arguments: Any, **options: Any) -> Any:
    """The function that `library` calls `name`, applied to traced values."""
    plain = name.strip("_")
    if name.endswith("_") and not name.startswith("__"):
        raise scope.fail(f"{library}.{name} changes a value in place", f"use {library}.{name[:-1]}")
    if name.startswith("__r") and FUNCTIONS.get(plain[1:]) is not None:
        plain, arguments = plain[1:], arguments[::-1]
    if options.get("out") is not None:
        raise scope.fail(f"{library}.{name} with out=", "use the result instead")
    plain = _ALIASES.get(plain, plain)
    function = FUNCTIONS.get(plain) or METHODS.get(plain)
    if function is None:
        raise scope.fail(
            f"{library}.{name} of a traced value is not known",
            "compose it of arithmetic, torch.where, torch.exp, ..." + _similar(name, FUNCTIONS),
        )
    options.pop("out", None)
    return _checked(f"{library}.{name}", function, *arguments, **options)


def _checked(name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return function(*arguments, **options)
    except TypeError as error:
        if type(error) is not TypeError:
            raise
        raise scope.fail(
            f"{name} was called in a way that cannot be traced ({error})", "pass numbers and traced values, by position"
        ) from error


def _similar(name: str, names: Mapping[str, Any]) -> str:
    found = difflib.get_close_matches(name, names, n=2)
    return f"; did you mean {' or '.join(found)}?" if found else ""
