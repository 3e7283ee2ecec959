"""Makes the small kernels of gradients and of segments: a block of rows, or of positions, at a time."""

from dataclasses import dataclass

from attn_mlir.mlir import ir
from attn_mlir.passes.tiling.elements import build_elements, build_row_dot
from attn_mlir.passes.tiling.linear_segments import build_decay_sum, build_state_scan
from attn_mlir.passes.tiling.linear_sums import build_decay_gradient, build_head_sum
from attn_mlir.passes.tiling.numerics import numerics_of
from attn_mlir.passes.tiling.tile_pass import TilePass, blocks_of, makers_of
from attn_mlir.passes.tiling.transition_scan import build_transition_scan


@dataclass(frozen=True)
class TileSums(TilePass):
    """Replaces each function holding an op that sums up, or changes, rows by a `tile` kernel.

    These ops are `attn.elements`, `attn.row_dot`, `attn.head_sum`, `attn.decay_gradient`, `attn.decay_gradient_sum`, `attn.decay_sum`,
    `attn.state_scan` and `attn.transition_scan`. Programs have `block-q` rows where the op names no interval or segment; `tile.blocks`
    gives one function another number, and one of `attn.transition_scan` rows of a tile and columns of a program. Sums of rows that
    elements read are made in their kernel. `tile.kernel` is as `attn-tile-rows` says. `slots` and `prefix` of the function's
    `tile.numerics` hold for "elements" and for sums of log decays.
    """

    name = "attn-tile-sums"
    kind = "sums"
    block_q: int = 64

    def sizes(self) -> tuple[int, ...]:
        return (self.block_q,)

    def build(self, function: ir.Operation, op: ir.Operation) -> bool:
        rows, *_ = blocks_of(function) or self.sizes()
        makers, numerics = makers_of(function), numerics_of(function, self.name)
        if numerics is None:
            return False
        match op.name:
            case "attn.elements":
                build_elements(function, op, makers, rows, numerics.slots)
            case "attn.head_sum":
                return build_head_sum(function, op, makers, rows)
            case "attn.decay_gradient" | "attn.decay_gradient_sum":
                build_decay_gradient(function, op, makers)
            case "attn.decay_sum":
                build_decay_sum(function, op, numerics.prefix)
            case "attn.state_scan":
                build_state_scan(function, op)
            case "attn.transition_scan":
                given = blocks_of(function)
                if given and ir.RankedTensorType(op.opview.states.type).shape[3] % given[1]:
                    op.location.emit_error(f"{self.name}: blocks of {given[1]} columns do not divide those of {op.opview.states.type}")
                    return False
                build_transition_scan(function, op, given)
            case _:
                build_row_dot(function, op, makers, rows)
        return True
