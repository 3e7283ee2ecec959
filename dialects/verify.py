"""Small helpers for op verifiers: one guard, one located error, one `bool`."""

from attn_mlir.mlir import ir


def check(op: ir.OpView, holds: bool, message: str) -> bool:
    """Emits `message` at `op` unless `holds`; returns `holds`."""
    if not holds:
        op.location.emit_error(f"'{op.operation.name}' {message}")
    return holds


def is_score_type(type_: ir.Type) -> bool:
    """True for the types that scores and row states may have: f32, or f64 for verification."""
    return isinstance(type_, (ir.F32Type, ir.F64Type))


def is_tensor(type_: ir.Type | None, *ranks: int) -> bool:
    """True for ranked tensors, of one of the `ranks` where any are given."""
    return isinstance(type_, ir.RankedTensorType) and (not ranks or ir.RankedTensorType(type_).rank in ranks)


def entry_block(op: ir.OpView | ir.Operation) -> ir.Block | None:
    """The only block of the op's first region, or None when it has none or several."""
    blocks = list(op.operation.regions[0].blocks)
    return blocks[0] if len(blocks) == 1 else None


def terminator(block: ir.Block) -> ir.OpView | None:
    """The block's last operation, or None for an empty block."""
    return block.operations[-1] if len(block.operations) else None
