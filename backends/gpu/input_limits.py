"""Which inputs kernels take: element types, head dimensions, and how large tensors may be.

They count positions, heads and captured elements along a dimension in 32 bits, some in f32.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from attn_mlir.backends.gpu.scalar_bounds import HEADS, INDICES, MAX_COLUMNS, POSITIONS
from attn_mlir.backends.host import Argument
from attn_mlir.backends.program import function_named
from attn_mlir.diagnostics import DiagnosticError, at
from attn_mlir.dialects.elements import EIGHT_BIT, is_eight_bit
from attn_mlir.dialects.elements import ELEMENTS as FLOATS
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

ELEMENTS = ("f16", "bf16")
"""Elements of q, k and v in attention."""
RECURRENT = (*ELEMENTS, "f32")
"""And in linear attention."""
NARROW = {"AMD": EIGHT_BIT, "NVIDIA": tuple(name for name, element in FLOATS.items() if element.taken_by("ocp"))}
"""The 8-bit elements of k and v in attention that kernels take."""
WIDENING = {"AMD": ELEMENTS, "NVIDIA": ELEMENTS}
"""Elements of q beside which kernels widen them to 16 bits on their way to matrix instructions; AMD's do so beside 8 bits as well."""
WIDE_COLUMNS = 1024
"""The largest head dimension of attention and its derivatives: `gpu.passes.slice_values`, `materialize_pairs`, `materialize_rows`."""
PAGE_ROWS = 16
"""Rows that are copied at a time of what lies in pages, whose sizes are multiples of it."""
MAX_STATE = 512
"""Columns of q, k and v in linear attention, whose states programs may share."""


def check_types(module: ir.Module, vendor: str, wide: bool = False) -> None:
    """Raises UnsupportedError for elements and head dimensions of `@attention` that no kernel takes; `vendor` is "NVIDIA" or "AMD".

    `wide`: whether there are kernels for heads of up to WIDE_COLUMNS. Programs of elements and sums of rows alone have no such limits.
    """
    if not find_all(module.operation, "attn.attention", "attn.online", "attn.pairs", "attn.linear_attention", "attn.chunk"):
        return
    type_ = ir.FunctionType(ir.TypeAttr(function_named(module, "attention").attributes["function_type"]).value)
    q, v, o = (ir.RankedTensorType(each) for each in (type_.inputs[0], type_.inputs[2], type_.results[0]))
    if is_eight_bit(v.element_type):
        _check_narrow(q.element_type, v.element_type, vendor)
    if is_eight_bit(o.element_type):
        raise UnsupportedError(f"kernels for {vendor} GPUs give no 8-bit o yet: leave out_dtype out, and cast o, or compute on the CPU")
    linear = bool(find_all(module.operation, "attn.linear_attention"))
    if not is_eight_bit(q.element_type) and str(q.element_type) not in (RECURRENT if linear else ELEMENTS):
        kinds, casts = ("16-bit and f32", ".float() or .bfloat16()") if linear else ("16-bit", ".half() or .bfloat16()")
        raise UnsupportedError(
            f"kernels for {vendor} GPUs take {kinds} inputs, but q, k and v are {q.element_type}: cast them with {casts} "
            "(scores and sums are float32 all the same), or compute on the CPU"
        )
    check_columns(q.shape[3], v.shape[3], linear, vendor, wide)


def _check_narrow(q: ir.Type, v: ir.Type, vendor: str) -> None:
    """Raises UnsupportedError for 8-bit k and v that kernels do not take beside such a q."""
    known = NARROW.get(vendor, ())
    if str(v) in known and (q == v or vendor == "AMD" or str(q) in WIDENING[vendor]):
        return
    others = "" if str(v) in known or not known else f" (there are, with {' and '.join(known)})"
    what = f"with 8-bit k and v ({v}) beside q of {q}" if not others and q != v else f"with 8-bit k and v ({v}){others}"
    raise UnsupportedError(
        f"there are no kernels for {vendor} GPUs {what} yet: dequantise them, for example "
        "k = (k.float() * k_descale).to(torch.bfloat16), or compute on the CPU"
    )


def check_programs(module: ir.Module, vendor: str, wide: bool = True) -> None:
    """The same for the head dimensions of every attention in a module that is not lowered yet. Raises DiagnosticError, with its place."""
    for op in find_all(module.operation, "attn.attention", "attn.online", "attn.linear_attention", "attn.chunk"):
        shapes = [ir.RankedTensorType(value.type).shape for value in list(op.operands)[:3] if isinstance(value.type, ir.RankedTensorType)]
        if len(shapes) == 3 and all(len(shape) == 4 for shape in shapes):
            try:
                linear = op.name in ("attn.linear_attention", "attn.chunk")
                check_columns(shapes[0][3], shapes[2][3], linear, vendor, wide)
            except UnsupportedError as error:
                raise DiagnosticError([at(op.location, "error", str(error))]) from None


def check_columns(keys: int, values: int, linear: bool, vendor: str, wide: bool = False) -> None:
    """Raises UnsupportedError for head dimensions of q and k, and of v, that no kernel takes."""
    most = MAX_STATE if linear else WIDE_COLUMNS if wide else MAX_COLUMNS
    for name, columns in (("q", keys), ("v", values)):
        if columns > most:
            more = "" if linear or wide else f"; there are kernels for up to {WIDE_COLUMNS}, but for derivatives with lists of keys"
            raise UnsupportedError(
                f"{name} has head dimension {columns}, and kernels for {vendor} GPUs take up to {most}: compute on the CPU{more}"
            )


def check_pages(caches: Iterable[torch.Tensor]) -> None:
    """Raises ArgumentError for pages [P, H, N, D] that kernels do not copy whole."""
    for cache in caches:
        if cache.shape[2] % PAGE_ROWS:
            raise ArgumentError(
                f"k and v have pages of {cache.shape[2]} positions, and kernels for GPUs take multiples of {PAGE_ROWS}: use such a cache, "
                "or gather the pages"
            )


def check_sizes(types: Sequence[Argument], inputs: Sequence[Any]) -> None:
    """Raises ArgumentError for tensors that are larger than kernels can count; `types` are those of a program's arguments."""
    for position, (type_, value) in enumerate(zip(types, inputs, strict=True)):
        if not isinstance(value, torch.Tensor):
            continue
        for size, most, what in _limits(type_, value.shape):
            if size > most:
                raise ArgumentError(
                    f"argument {position} of this program, of shape {list(value.shape)}, has {size} {what}, and kernels for GPUs "
                    f"take up to {most}: call it for parts of the tensors"
                )


def _limits(type_: Argument, shape: Sequence[int]) -> Iterator[tuple[int, int, str]]:
    """Sizes, how large they may be, and what they count. Like q, k and v are tensors [B, H, S, D] whose D is fixed."""
    if type_.shape is not None and len(type_.shape) == len(shape) == 4 and type_.shape[3] != -1:
        yield from zip(shape[:3], (HEADS, HEADS, POSITIONS), ("batches", "heads", "positions"), strict=True)
    else:
        yield from ((size, INDICES, f"elements along dimension {dim}") for dim, size in enumerate(shape))
