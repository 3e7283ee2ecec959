"""CUDA C++ for Hopper: a producer warp that loads tiles by TMA, and warpgroups that multiply and compute."""

from collections.abc import Mapping

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import SCHEDULE, Fields, grid_kind
from attn_mlir.backends.gpu.emitters import Refusal
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.structure import body
from attn_mlir.backends.nvidia.hopper.channel_read import channels_of, read_channels
from attn_mlir.backends.nvidia.hopper.channel_scan import emit_channels, plan_channels
from attn_mlir.backends.nvidia.hopper.pairs_plan import emit_pairs, plan_pairs
from attn_mlir.backends.nvidia.hopper.plan import plan_rows
from attn_mlir.backends.nvidia.hopper.plan_windows import plan_with_windows
from attn_mlir.backends.nvidia.hopper.row_kernels import RowsKernel
from attn_mlir.backends.nvidia.hopper.scan import emit_scan, plan_scan
from attn_mlir.backends.nvidia.hopper.scan_patterns import why_not
from attn_mlir.backends.nvidia.hopper.scan_read import scan_of
from attn_mlir.backends.nvidia.hopper.shared_values import SharedValuesKernel, plan_shared
from attn_mlir.backends.nvidia.hopper.value_read import read_values, values_of
from attn_mlir.backends.nvidia.hopper.value_scan import emit_values, plan_values
from attn_mlir.backends.nvidia.hopper.widened_rings import widens
from attn_mlir.backends.nvidia.passes.float32_products import PIECES
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

NARROW_ADVICE = "dequantise them, for example k = (k.float() * k_descale).to(torch.bfloat16), or compute on the CPU"


def plan(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | Refusal | None:
    """The schedule of a kernel with matrix products, or why it is left to a slower emitter; None for other kernels and other chips."""
    if not target.bulk_copies:
        return None
    match grid_kind(kernel):
        case "rows":
            fields = _plan_rows(kernel, target, choices)
            if isinstance(fields, Refusal) and widens(kernel):
                raise UnsupportedError(f"8-bit k and v beside wider q: {fields}; {NARROW_ADVICE}")
            return fields
        case "pairs":
            return plan_with_windows(kernel, lambda some, wanted: plan_pairs(some, target, wanted), choices)
        case "chunks":
            fields = plan_scan(kernel, target, choices) or plan_channels(kernel, target, choices)
            return fields or plan_values(kernel, target, choices) or _other_scan(kernel)
    return None


def _plan_rows(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | Refusal | None:
    if choices.get("values") == "keys":
        return plan_shared(kernel, target, choices)
    return plan_with_windows(kernel, lambda some, wanted: plan_rows(some, target, wanted), choices)


def _other_scan(kernel: ir.Operation) -> Refusal | None:
    """Why no scan of this emitter is the kernel; None for kernels without products, and for delta rules, which are not its own."""
    if PIECES in kernel.attributes:
        return None
    if not find_all(kernel, *DOTS, "tile.decay_channels", "tile.decay_values"):
        return None
    for load in find_all(kernel, "tile.load"):
        type_ = ir.RankedTensorType(load.results[0].type)
        if type_.rank == 2 and isinstance(type_.element_type, ir.F32Type) and load.operands[0] == body(kernel).arguments[0]:
            return Refusal("its scans take f16 or bf16, not f32", load)
    channels, values = (bool(find_all(kernel, name)) for name in ("tile.decay_channels", "tile.decay_values"))
    return why_not(channels_of if channels else values_of if values else scan_of, kernel)


def emit(kernel: ir.Operation, target: NvidiaTarget) -> KernelCode:
    """The source of a scheduled kernel. Raises UnsupportedError for what this emitter cannot do."""
    schedule = attributes.read(kernel, SCHEDULE)
    match grid_kind(kernel):
        case "rows":
            return (SharedValuesKernel if schedule.get("values") == "keys" else RowsKernel)(kernel, schedule).emit()
        case "pairs":
            return emit_pairs(kernel, target, schedule)
        case "chunks":
            if (by_key := read_channels(kernel)) is not None:
                return emit_channels(by_key)
            by_value = read_values(kernel)
            return emit_scan(kernel, schedule) if by_value is None else emit_values(by_value)
        case grid:
            raise UnsupportedError(f"hopper: no kernels over {grid}; use the emitter 'tilelang'")
