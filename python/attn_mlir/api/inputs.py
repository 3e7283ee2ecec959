"""Checks q, k and v before anything else looks at them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.compiler import is_compiling

from attn_mlir.dialects.elements import ELEMENTS as TABLE
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.frontend.given import Inputs
from attn_mlir.runtime.call import Problem
from attn_mlir.runtime.orders import input_order

Layout = str | Sequence[str]
LAYOUTS = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (1, 2, 0, 3)}
"""Where batch, head, position and dim are."""
_DIMENSIONS = {"b": "batch", "h": "head", "s": "position", "d": "dim"}
ALL_ELEMENTS = {getattr(torch, element.torch): name for name, element in TABLE.items()}
EIGHT_BIT_ELEMENTS = {dtype: name for dtype, name in ALL_ELEMENTS.items() if TABLE[name].is_eight_bit}
ELEMENTS = {dtype: name for dtype, name in ALL_ELEMENTS.items() if dtype not in EIGHT_BIT_ELEMENTS}
"""Of q, k and v; attention takes those of 8 bits, too."""
MAX_HEAD_DIM = 1024
"""GPUs take fewer, as their backends say."""
MAX_STATE_DIM = 576
"""Of linear attention."""
MAX_LENGTH = 2**31
_is_traced = torch._C._is_tracing
_CACHE_LIMIT = 4096


_checked: dict[Any, Problem] = {}


def check_inputs(q: Any, k: Any, v: Any, layout: Layout) -> Problem:
    """The problem that q, k and v pose. Raises ArgumentError naming the argument that is wrong."""
    if _is_traced():
        refuse_jit_trace()
    return remembered(q, k, v, layout, problem_of, _checked)


def remembered(q: Any, k: Any, v: Any, layout: Layout, find: Callable[..., Problem], known: dict[Any, Problem]) -> Problem:
    """What `find` says of q, k, v and the layout, kept in `known` for other tensors of these sizes and dtypes."""
    try:
        key = _key(layout, q, k, v)
        problem = known.get(key)
    except (AttributeError, TypeError, RuntimeError):  # RuntimeError: nested tensors have no shape
        key = problem = None
    if problem is None or not (isinstance(q, torch.Tensor) and isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)):
        problem = find(q, k, v, layout)
        if key is not None:
            if len(known) >= _CACHE_LIMIT:
                known.clear()
            known[key] = problem
    return problem


def known_problem(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: str) -> Problem | None:
    """What `check_inputs` found for inputs such as these in an earlier call; None: it has to be asked."""
    try:
        return None if _is_traced() else _checked.get(_key(layout, q, k, v))
    except TypeError:  # sizes that torch.export leaves open
        return None


def _key(layout: Layout, q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    return (layout, q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, q.layout, k.layout, v.layout)


def refuse_jit_trace() -> None:
    """Refuses torch.jit.trace, which would take what is computed now for a constant. Raises UnsupportedError."""
    if _is_traced():
        raise UnsupportedError("torch.jit.trace cannot record attention: use torch.export.export, or torch.compile")


def problem_of(q: Any, k: Any, v: Any, layout: Layout) -> Problem:
    """What `check_inputs` finds, without remembering it."""
    orders = layout_of(layout)
    order = input_order(orders)
    named = {"q": q, "k": k, "v": v}
    for name, tensor in named.items():
        check_tensor(name, tensor, order, ALL_ELEMENTS)
    check_dtypes(q, k, v)
    for name in ("k", "v"):
        check_device(name, named[name], q.device)
    return _check_sizes(named, orders)


def layout_of(layout: Any) -> str:
    """The layout of q, k, v and o that the argument `layout` means: one for all, or one for q, k and v and one for o."""
    if isinstance(layout, str) and layout in LAYOUTS:
        return layout
    if isinstance(layout, (tuple, list)) and len(layout) == 2 and all([isinstance(one, str) and one in LAYOUTS for one in layout]):
        return layout[0] if layout[0] == layout[1] else f"{layout[0]}->{layout[1]}"
    raise ArgumentError(
        'layout is "bhsd" ([batch, head, position, dim]), "bshd" ([batch, position, head, dim]) or "sbhd" ([position, batch, head, dim]), '
        f'or two of these, ("bhsd", "bshd"), the first for q, k and v, the second for the output; got {layout!r}'
    )


def dimensions(order: str) -> str:
    """The dimensions of an order in words."""
    return f"[{', '.join([_DIMENSIONS[letter] for letter in order])}]"


def check_dtype(name: str, tensor: torch.Tensor, like: torch.Tensor, whose: str = "q") -> None:
    """Checks that a tensor has the dtype of another one, called `whose`. Raises ArgumentError."""
    if tensor.dtype != like.dtype:
        differ = f"{name} has dtype {tensor.dtype} but {whose} has {like.dtype}"
        raise ArgumentError(f"{differ}: cast one of them, e.g. {name}.to({whose}.dtype)")


def check_dtypes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Checks that q, k and v have one dtype, or k and v one of 8 bits and q a wider one. Raises ArgumentError."""
    if k.dtype in EIGHT_BIT_ELEMENTS and q.dtype not in EIGHT_BIT_ELEMENTS:
        check_dtype("v", v, k, "k")
        return
    for name, tensor in (("k", k), ("v", v)):
        check_dtype(name, tensor, q)


def check_device(name: str, tensor: torch.Tensor, device: torch.device, whose: str = "q") -> None:
    """Checks that a tensor is where q is, or another one that is called `whose`. Raises ArgumentError."""
    if tensor.device != device:
        raise ArgumentError(f"{name} is on {tensor.device} but {whose} is on {device}: move it with {name}.to({whose}.device)")


def check_tensor(name: str, tensor: Any, layout: str, elements: Mapping[torch.dtype, str] = ELEMENTS) -> None:
    """Checks that an input is a plain tensor of four dimensions and one of these dtypes. Raises ArgumentError."""
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.is_nested:
        raise ArgumentError(
            f"{name} is a nested tensor: pad it with torch.nested.to_padded_tensor({name}, 0.0) and leave the padding out with mask_mod; "
            "`attention` takes three of layout=torch.jagged, `attention_varlen` packed sequences"
        )
    if tensor.is_quantized:
        raise ArgumentError(f"{name} is a quantized tensor: use {name}.dequantize()")
    if tensor.layout != torch.strided:
        raise ArgumentError(f"{name} must be a plain strided tensor, got layout {tensor.layout}: use {name}.to_dense()")
    if tensor.device.type == "meta":
        raise ArgumentError(f"{name} is on the meta device and holds no data")
    if tensor.dim() != 4:
        raise ArgumentError(f"{name} must have 4 dimensions, {dimensions(layout)}, got shape {list(tensor.shape)}")
    check_element(name, tensor, elements)
    if not is_compiling() and max(tensor.shape) >= MAX_LENGTH:
        raise ArgumentError(f"{name} has a dimension of {max(tensor.shape)} elements; the limit is {MAX_LENGTH - 1}")


def check_element(name: str, tensor: torch.Tensor, elements: Mapping[torch.dtype, str] = ELEMENTS) -> None:
    """Checks the dtype of q, k, v, or of what takes their place."""
    if tensor.dtype not in elements:
        eight = " (or a float8 type)" if elements is ALL_ELEMENTS else ""
        raise ArgumentError(f"{name} has dtype {tensor.dtype}: use float32, float16, bfloat16 or float64{eight}")


def check_head_dim(what: str, size: int, most: int = MAX_HEAD_DIM) -> None:
    """Checks a head dimension; `what` has it, as the error says."""
    if not 1 <= size <= most:
        raise ArgumentError(f"{what} {size}; it must be 1 to {most}")


def check_dims(most: int = MAX_HEAD_DIM, **dims: Any) -> None:
    """Checks head dimensions that are given as numbers, by the names of their arguments."""
    for name, size in dims.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise ArgumentError(f"{name} must be an integer, got {size!r}")
        check_head_dim(f"{name} is", size, most)


def device_type(device: Any) -> str | None:
    """The type of a device given by name or as a torch.device: "cpu" for "cpu:0"; None for None. Backends tell unknown names."""
    if device is None or device == "cpu":
        return None if device is None else "cpu"
    if not isinstance(device, (str, torch.device)):
        raise ArgumentError(
            f'device takes a name such as "cpu" or a torch.device, got {type(device).__name__}: leave it out to use that of the tensors'
        )
    try:
        return torch.device(device).type
    except RuntimeError:
        return str(device)


def _other_layout(named: dict[str, torch.Tensor]) -> str:
    """A question, where the shapes fit another layout."""
    for other in LAYOUTS:
        (b, heads, _, dim), (kb, kv_heads, keys, key_dim), value = (tuple(x.shape[i] for i in LAYOUTS[other]) for x in named.values())
        if b == kb and kv_heads and heads % kv_heads == 0 and value[:3] == (kb, kv_heads, keys) and dim == key_dim:
            return f'; did you mean layout="{other}"?'
    return ""


def _check_sizes(named: dict[str, torch.Tensor], layout: str) -> Problem:
    places = LAYOUTS[input_order(layout)]
    shapes = {name: tuple(tensor.shape[i] for i in places) for name, tensor in named.items()}
    (b, heads, length, dim), (_, kv_heads, keys, _), value_dim = shapes["q"], shapes["k"], shapes["v"][3]
    for name in ("k", "v"):
        if shapes[name][0] != b:
            raise ArgumentError(f"{name} has batch size {shapes[name][0]} but q has {b}{_other_layout(named)}")
    if shapes["v"][1] != kv_heads:
        raise ArgumentError(f"v has {shapes['v'][1]} heads but k has {kv_heads}")
    if shapes["v"][2] != keys:
        raise ArgumentError(f"v has {shapes['v'][2]} positions but k has {keys}")
    if shapes["k"][3] != dim:
        raise ArgumentError(f"k has head dimension {shapes['k'][3]} but q has {dim}")
    if (heads % kv_heads if kv_heads else heads) != 0:
        hint = _other_layout(named)
        raise ArgumentError(f"q has {heads} heads, which is no multiple of the {kv_heads} heads of k and v{hint}")
    for name, size in (("q", dim), ("v", value_dim)):
        check_head_dim(f"{name} has head dimension", size)
    sizes = {"B": b, "Hq": heads, "Hkv": kv_heads, "Sq": length, "Skv": keys, "D": dim, "Dv": value_dim}
    q = named["q"]
    # Lengths that a graph leaves open are asked nothing that would bound them; head dimensions are always numbers.
    is_empty = not is_compiling() and 0 in (b, heads, length, keys)
    inputs = Inputs(ALL_ELEMENTS[q.dtype], int(dim), int(value_dim))
    if named["k"].dtype in EIGHT_BIT_ELEMENTS:
        output = "bf16" if q.dtype in EIGHT_BIT_ELEMENTS else inputs.element
        inputs = dataclasses.replace(inputs, kv_element=EIGHT_BIT_ELEMENTS[named["k"].dtype], output=output)
    return Problem(inputs, q.device, sizes, q.device.type, is_empty, layout)
