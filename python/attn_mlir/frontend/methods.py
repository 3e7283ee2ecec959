"""Names to functions: the methods of traced values, and torch's and numpy's functions by their names; docs/vocabulary.md lists them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from attn_mlir.frontend import activations, creation, entropy, helps, inverse, ops, reductions, scope, special, unknown, vocabulary
from attn_mlir.frontend.node import Kind
from attn_mlir.frontend.sizes import kv_len
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


def _full_like(x: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Value:
    return to(fill_value, _DTYPES[lift(x).kind] if dtype is None else dtype)


def _like(fill: float) -> Callable[..., Value]:
    return lambda x, dtype=None, **_: _full_like(x, fill, dtype)


def _item(x: Any) -> Any:
    return value(x)._concrete(".item()", "leave it out: the value already is a number")


def _operator(name: str) -> Callable[..., Value]:
    return lambda a, b: getattr(value(a), f"__{name}__")(b)


def _is_row(x: Any) -> bool:
    """Whether `x` differs from key to key of a row function."""
    piece = scope.current().scope
    return lift(x).varying and piece is not None and piece.kind == "row"


def _squeezed(x: Any, dim: Any = None) -> Value:
    """A reduced row with or without a dimension for the keys is one number."""
    if _is_row(x):
        raise scope.fail(f"changes the dimensions of {value(x)._describe()}, which is a whole row of keys", unknown.ROW)
    return value(x)


def _shape(x: Any) -> tuple[Any, ...]:
    """A row is as long as there are keys, masked ones included; anything else is one number."""
    return (kv_len(),) if _is_row(x) else torch.Size([])


def _size(x: Any, dim: int | None = None) -> Any:
    shape = _shape(x)
    if dim is not None and not -len(shape) <= dim < len(shape):
        raise scope.fail(f".size({dim}) of {value(x)._describe()}, which is one number", unknown.LENGTHS)
    return shape if dim is None else shape[dim]


def _numel(x: Any) -> Any:
    return kv_len() if _is_row(x) else 1


_COMPARISONS = {"eq": "eq", "ne": "ne", "not_equal": "ne", "lt": "lt", "less": "lt", "le": "le", "less_equal": "le",
                "gt": "gt", "greater": "gt", "ge": "ge", "greater_equal": "ge"}  # fmt: skip
_ALIASES = {
    "multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div", "absolute": "abs", "negative": "neg", "clip": "clamp",
    "fix": "trunc", "expit": "sigmoid", "power": "pow", "remainder": "mod", "floor_divide": "floordiv", "log_sigmoid": "logsigmoid",
    "swish": "silu", "bitwise_left_shift": "lshift", "bitwise_right_shift": "rshift", "left_shift": "lshift", "right_shift": "rshift",
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "bitwise_not": "invert", "rint": "round", "conj": "positive",
    "sgn": "sign", "arctan": "atan", "arctan2": "atan2", "arcsin": "asin", "arccos": "acos", "arcsinh": "asinh", "arccosh": "acosh",
    "arctanh": "atanh", "gammaln": "lgamma", "psi": "digamma", "modified_bessel_i0": "i0", "vector_norm": "linalg_vector_norm",
    "linalg_norm": "linalg_vector_norm", "nelement": "numel",
}  # fmt: skip

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(vocabulary, name) for name in (
        "exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "tan", "sinh",
        "cosh", "floor", "ceil", "trunc", "frac", "sigmoid", "square", "reciprocal", "sign", "isnan", "isinf", "isfinite",
        "relu", "hardtanh", "maximum", "minimum", "where", "masked_fill", "clamp",
        "add", "sub", "rsub", "div", "fmod", "copysign", "logical_not", "logaddexp", "lerp", "addcmul", "addcdiv", "detach",
    )},
    **{name: getattr(inverse, name) for name in ("atan", "atan2", "asin", "acos", "asinh", "acosh", "atanh", "hypot")},
    **{name: getattr(special, name) for name in (
        "erfc", "erfinv", "ndtr", "lgamma", "digamma", "i0", "i0e", "logit", "sinc", "nan_to_num",
    )},
    **{name: getattr(activations, name) for name in (
        "relu6", "leaky_relu", "prelu", "threshold", "elu", "selu", "celu", "silu", "mish", "gelu", "logsigmoid", "softplus",
        "softsign", "hardsigmoid", "hardswish", "hardshrink", "softshrink", "tanhshrink",
    )},
    **{name: _operator(name) for name in ("mul", "mod", "floordiv", "pow", "lshift", "rshift", "and", "or", "xor", "truediv")},
    **{name: _operator(other) for name, other in _COMPARISONS.items()},
    "xlogy": entropy.xlogy, "entr": entropy.entr,
    "round": vocabulary.round_, "abs": vocabulary.abs_, "neg": lambda x: -value(x), "positive": value,
    "invert": lambda x: ~value(x),
    "logical_and": vocabulary.logical("and"), "logical_or": vocabulary.logical("or"), "logical_xor": vocabulary.logical("xor"),
    "clamp_min": lambda x, min: vocabulary.clamp(x, min=min), "clamp_max": lambda x, max: vocabulary.clamp(x, max=max),
    **{name: getattr(reductions, name) for name in (
        "mean", "nansum", "nanmean", "amax", "amin", "aminmax", "count_nonzero", "var", "var_mean", "std", "std_mean", "norm",
        "prod", "logsumexp", "softmax", "softmin", "log_softmax", "normalize",
    )},
    "sum": reductions.sum_, "max": reductions.extremum("max"), "min": reductions.extremum("min"),
    "any": reductions.any_, "all": reductions.all_, "linalg_vector_norm": reductions.vector_norm,
    "zeros_like": _like(0.0), "ones_like": _like(1.0), "full_like": _full_like,
    "clone": lambda x, **_: wrap(lift(x)), "contiguous": value,
    "scalar_tensor": lambda x, **_: value(x), "tensor": lambda x, dtype=None, **_: to(x, dtype),
}  # fmt: skip
"""By the names of torch's functions, without `special_`; as methods, too."""

METHODS: Mapping[str, Callable[..., Any]] = {
    **FUNCTIONS,
    **creation.METHODS,
    "to": to, "type": to, "type_as": to, "get_reduce": reductions.get_reduce, "item": _item, "tolist": _item,
    "float": lambda x: to(x, torch.float32), "double": lambda x: to(x, torch.float32), "half": lambda x: to(x, torch.float32),
    "bfloat16": lambda x: to(x, torch.float32), "int": lambda x: to(x, torch.int64), "long": lambda x: to(x, torch.int64),
    "bool": lambda x: to(x, torch.bool), "cpu": value, "cuda": lambda x, *_: value(x), "expand_as": lambda x, other: value(x),
    "squeeze": _squeezed, "unsqueeze": _squeezed,
    "where": lambda x, condition, other: vocabulary.where(condition, x, other),
    "dim": lambda x: len(_shape(x)), "numel": _numel, "size": _size, "is_floating_point": lambda x: lift(x).kind == "float",
}  # fmt: skip
"""Also what only methods have."""

_PROPERTIES: Mapping[str, Callable[[Value], Any]] = {
    "dtype": lambda x: _DTYPES[x._node.kind],
    "shape": _shape,
    "ndim": lambda x: len(_shape(x)),
    "device": lambda x: scope.current().device,
    "requires_grad": lambda x: False,
}


def aliased(name: str) -> str:
    """The name under which the tables know a function."""
    return _ALIASES.get(name, name)


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
    error = helps.UnknownAttribute(f"a traced value has no attribute {name!r}", unknown.advice(name, METHODS))
    raise scope.insist(error) if callable(getattr(torch.Tensor, name, None)) else error


def call(name: str, library: str, *arguments: Any, **options: Any) -> Any:
    """The function that `library` calls `name`, applied to traced values."""
    plain = name.strip("_").removeprefix("special_")
    if name.endswith("_") and not name.startswith("__"):
        raise scope.fail(f"{library}.{name} changes a value in place", f"use {library}.{name[:-1]}")
    if name.startswith("__r") and FUNCTIONS.get(plain[1:]) is not None:
        plain, arguments = plain[1:], arguments[::-1]
    if options.get("out") is not None:
        raise scope.fail(f"{library}.{name} with out=", "use the result instead")
    plain = _ALIASES.get(plain, plain)
    function = FUNCTIONS.get(plain) or METHODS.get(plain)
    if function is None:
        raise scope.refuse(f"{library}.{name.removeprefix('special_')} of a traced value is not known", unknown.advice(plain, FUNCTIONS))
    options.pop("out", None)
    options |= {"x": options.pop("input")} if "input" in options else {}
    return _checked(f"{library}.{name}", function, *arguments, **options)


def _checked(name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    for second in ("other", "exponent"):  # torch's names of what operators here take by position
        if second in options and len(arguments) + ("x" in options) == 1:
            arguments = (*(arguments or (options.pop("x"),)), options.pop(second))
    try:
        return function(*arguments, **options)
    except TypeError as error:
        if type(error) is not TypeError:
            raise
        problem = f"{name} was called in a way that cannot be traced ({str(error).removeprefix(getattr(function, '__qualname__', ''))})"
        raise scope.fail(problem, "pass numbers and traced values, by position") from error
