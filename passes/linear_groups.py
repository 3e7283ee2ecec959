"""Ops of linear attention that share a kernel: scans with the same states, and a gradient of log decays with its backward scan."""

from attn_mlir.dialects.attn.linear_erase import is_delta
from attn_mlir.dialects.attn.linear_recurrence import with_all_heads
from attn_mlir.dialects.attn.linear_segments import segment_of
from attn_mlir.dialects.attn.rows import multiplies_rows
from attn_mlir.mlir import ir
from attn_mlir.passes.linear_scale import scale_of
from attn_mlir.passes.regions import alike, block_of, maker, piece

_SCANS = ("attn.linear_attention", "attn.chunk")
LINEAR = (*_SCANS, "attn.head_sum", "attn.decay_gradient", "attn.decay_gradient_sum", "attn.decay_sum", "attn.state_scan",
          "attn.transition_scan")  # fmt: skip


def gradient_of(scan: ir.Operation) -> ir.Operation | None:
    """The `crossing` gradient of log decays that takes b and e from a backward scan, where nothing else does; else None."""
    view = scan.opview
    if view.products is None or view.states is None or view.direction.value != "backward":
        return None
    made = (view.products, view.states)
    users = {use.owner.operation for value in made for use in value.uses}
    op = next(iter(users)) if len(users) == 1 else None
    if op is None or op.name != "attn.decay_gradient" or "crossing" not in op.attributes:
        return None
    return op if (op.opview.b, op.opview.e) == made and op.opview.a not in made and op.opview.s not in made else None


def scan_of(op: ir.Operation) -> ir.Operation | None:
    """The backward scan that stores this gradient of log decays; None where it is anything else."""
    scan = maker(op.opview.b, *_SCANS) if op.name == "attn.decay_gradient" else None
    gradient = gradient_of(scan) if scan is not None else None
    return scan if gradient is not None and gradient == op else None


def leader_of(op: ir.Operation) -> ir.Operation | None:
    """The scan before `op` in its block that has the same states the other way round: that of v k^T is the transposed one of k v^T."""
    if op.name not in _SCANS:
        return None
    found = [view.operation for view in op.block.operations if view.operation.name in _SCANS]
    return next((first for first in found[: found.index(op)] if leader_of(first) is None and _have_same_states(first, op)), None)


def follower_of(scan: ir.Operation) -> ir.Operation | None:
    """The first scan of which this one is the leader."""
    operations = [view.operation for view in scan.block.operations if view.operation.name in _SCANS]
    led = [(op, leader_of(op)) for op in operations[operations.index(scan) + 1 :]]
    return next((op for op, leader in led if leader is not None and leader == scan), None)


def _have_same_states(first: ir.Operation, op: ir.Operation) -> bool:
    a, b = first.opview, op.opview
    swapped = [(a.k, b.v), (a.v, b.k), (with_all_heads(first), with_all_heads(op))]
    same = [(getattr(a, name), getattr(b, name)) for name in ("decay", "initial_state", "offsets")]
    if is_delta(first) or is_delta(op):
        return False
    if a.channels.value != "none" or b.channels.value != "none" or a.direction.value != b.direction.value or a.state.value == b.state.value:
        return False
    if not all(_fits_mod(scan, name) for scan in (first, op) for name in ("attn.query", "attn.key", "attn.value")):
        return False
    decays = ("attn.decay", "attn.input_decay", "attn.output_decay", "attn.decay_mask")
    return (
        all(_same_piece(piece(first, name), piece(op, name)) for name in decays)
        and _enter_alike(first, op)
        and segment_of(first) == segment_of(op)
        and all(x == y for x, y in swapped)
        and all((x is None) == (y is None) and (x is None or x == y) for x, y in same)
    )


def _fits_mod(scan: ir.Operation, name: str) -> bool:
    """Whether the mod of this name is a factor of rows; a scale, which becomes a part of other factors, stands in `attn.key`."""
    mod = piece(scan, name)
    return mod is None or (multiplies_rows(mod) and (name == "attn.key" or scale_of(scan, name) is None))


def _enter_alike(first: ir.Operation, op: ir.Operation) -> bool:
    """Whether what enters the states of two scans, k and v of one as v and k of the other, has the same factors."""
    (k, v), (other_k, other_v) = ((piece(scan, "attn.key"), piece(scan, "attn.value")) for scan in (first, op))
    scaled = [scale_of(scan, "attn.key") is not None for scan in (first, op)]
    if any(scaled):
        return all(scaled) and _same_piece(k, other_k) and v is other_v is None
    return _same_piece(k, other_v) and _same_piece(v, other_k)


def _same_piece(x: ir.Operation | None, y: ir.Operation | None) -> bool:
    return x is y is None or (x is not None and y is not None and alike(block_of(x), block_of(y)))
