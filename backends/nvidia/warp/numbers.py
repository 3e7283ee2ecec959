"""Bounds of the numbers of scheduled kernels, so that 32 bits are used where they suffice."""

from attn_mlir.backends.gpu.scalar_bounds import HEADS, POSITIONS, Bounds, IntegerRanges, fits_int, type_bounds
from attn_mlir.dialects.regions import maker
from attn_mlir.dialects.warp.kinds import is_shared
from attn_mlir.mlir import ir

COUNTS = (0, 1 << 30)
"""How often a thread block has used a stage, or taken a tile: numbers that loops carry, and what roles tell each other."""
_BLOCKS = (0, 1 << 20)
_WARPGROUPS = (0, 8)
_COLUMNS = (0, 1 << 12)


class Numbers(IntegerRanges):
    """Bounds of integers by what makes them: roles, loops, stages, maps. Arithmetic on them is exact, or 64 bits wide."""

    def _compute(self, value: ir.Value) -> Bounds:
        if isinstance(value.owner, ir.Block):
            return self._of_argument(value)
        op = value.owner.operation
        match op.name:
            case "warp.block_id" | "warp.block_count":
                return _BLOCKS
            case "warp.stage":
                return (0, ir.IntegerAttr(op.attributes["stages"]).value) if value == op.results[0] else (0, 1)
            case "warp.next_tile":
                return COUNTS
            case "memref.load" if is_shared(op.operands[0].type, 2):
                return (-COUNTS[1], COUNTS[1])
            case "scf.for" | "scf.if" | "scf.while" if isinstance(value.type, ir.IndexType):
                return COUNTS
        return super()._compute(value)

    def _of_argument(self, value: ir.Value) -> Bounds:
        argument = ir.BlockArgument(value)
        owner = argument.owner.owner.operation
        match owner.name:
            case "warp.role":
                return _WARPGROUPS
            case "warp.map" | "warp.drop":
                return _COLUMNS
            case "scf.for" if argument.arg_number == 0 and maker(owner.operands[0], "warp.block_id") is not None:
                return COUNTS
            case "scf.for" if argument.arg_number == 0:
                low, high = self.of(owner.operands[0])[0], self.of(owner.operands[1])[1]
                return (min(low, 0), max(high, 0)) if fits_int((low, high)) else type_bounds(value.type)
            case "scf.for" | "scf.while" if isinstance(value.type, ir.IndexType):
                return COUNTS
            case "warp.kernel" if isinstance(value.type, ir.IndexType) and not _seeds(value):
                return (-(1 << 31), (1 << 31) - 1)
        return type_bounds(value.type)

    def _dim(self, op: ir.Operation) -> Bounds:
        """Limits that the driver checks hold for [B, H, S, D] and [B, H, S]."""
        shape, axis = ir.MemRefType(op.operands[0].type), self.of(op.operands[1])[0]
        if shape.rank in (3, 4) and 0 <= axis < 3:
            return (0, POSITIONS if axis == 2 else HEADS)
        return super()._dim(op)


def _seeds(value: ir.Value) -> bool:
    """Whether dropout's bits are made of it: seeds have 64 bits."""
    return any(use.owner.operation.name == "attn.kept" for use in value.uses)
