"""Schedules of kernels that read windows of captured tensors, and why others go on reading them element by element."""

from collections.abc import Callable, Mapping

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.emitters import Refusal
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.plan import is_uneven
from attn_mlir.backends.nvidia.hopper.windows import WINDOWS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.load_windows import LoadWindows
from attn_mlir.passes.regions import find_all

GATHERS = "gathers"
"""In a schedule: why captured tensors are read element by element."""
Choices = Mapping[str, int | str]


def plan_with_windows(
    kernel: ir.Operation, plan: Callable[[ir.Operation, Choices], Fields | Refusal | None], choices: Choices
) -> Fields | Refusal | None:
    """The schedule of `plan`, with `windows`, how many stages of them there are, where the kernel has windows and they fit.

    `nvidia-load-windows` makes them afterwards; here they are in a copy. A choice of 0 leaves them out.
    """
    wanted = choices.get("windows")
    rest = {name: value for name, value in choices.items() if name != "windows"}
    copy = _with_windows(kernel) if wanted != 0 else None
    if copy is None:
        return plan(kernel, rest)
    why = Refusal("their windows do not fit into shared memory beside two stages of keys")
    if wanted is None and attributes.grid_kind(kernel) == "rows" and any(map(_is_staggered, find_all(copy, "tile.load_window"))):
        copy.erase()
        return _reading(plan(kernel, rest), Refusal("rows of their windows begin at elements that follow each other"))
    try:
        depths, narrow = thresholds.WINDOW_STAGES, attributes.grid_kind(kernel) == "rows" and _narrow(copy)
        depths = depths[::-1] if narrow and not is_uneven(copy) else depths
        for depth in depths if wanted is None else (int(wanted),):
            fields = _attempt(copy, plan, {**rest, "windows": depth})
            if isinstance(fields, Refusal):
                why = fields
            elif fields is not None and (wanted is not None or int(fields["stages"]) > 1):
                return fields
    finally:
        copy.erase()
    return _reading(plan(kernel, rest), why)


def _reading(fields: Fields | Refusal | None, why: Refusal) -> Fields | Refusal | None:
    """A schedule that says why captured tensors are read element by element."""
    if fields is not None and not isinstance(fields, Refusal):
        fields[GATHERS] = str(why)
    return fields


def _is_staggered(window: ir.Operation) -> bool:
    """Whether each row of a window begins some elements after the one before, as at t[i + j]: no box for TMA, and no row is aligned.

    Where warps copy such windows, forward passes take 3.3 to 4 times as long as with reads of single elements.
    """
    return list(ir.DenseI64ArrayAttr(window.attributes["row_steps"]))[-1] != 0


def make_windows(kernel: ir.Operation) -> None:
    """Makes windows of what a kernel reads of captured tensors: keys follow each other in memory, and are rows in kernels of pairs."""
    LoadWindows(products=True, turned=attributes.grid_kind(kernel) == "pairs").run(kernel)


def _narrow(kernel: ir.Operation) -> bool:
    """Whether heads have up to 64 columns, and there is a window of 16 bits, not of more, beside bands."""
    columns = max((ir.RankedTensorType(load.results[0].type).shape[1] for load in find_all(kernel, "tile.load")), default=0)
    widths = {ir.RankedTensorType(op.results[0].type).element_type.width for op in find_all(kernel, "tile.load_window")}
    return columns <= 64 and widths == {16}


def _attempt(
    kernel: ir.Operation, plan: Callable[[ir.Operation, Choices], Fields | Refusal | None], choices: Choices
) -> Fields | Refusal | None:
    try:
        return plan(kernel, choices)
    except UnsupportedError as error:
        return Refusal.of(error)


def _with_windows(kernel: ir.Operation) -> ir.Operation | None:
    """A copy beside the kernel that reads windows; None where there are none."""
    if not find_all(kernel, "memref.load"):
        return None
    with ir.InsertionPoint(kernel):
        copy = kernel.clone().operation
    make_windows(copy)
    if find_all(copy, *WINDOWS):
        return copy
    copy.erase()
    return None
