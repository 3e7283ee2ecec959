"""Counters of sums over keys that the first thread block stores, and others add to: where a step asks for its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir, memref


@dataclass
class Claims:
    """A counter for each `semaphore_rows` rows of a head of argument `semaphore_over`, as the schedule says; see `warp-claim-sums`."""

    function: ir.Operation

    def __post_init__(self) -> None:
        fields = attributes.read(self.function, attributes.SCHEDULE)
        known = all(isinstance(fields.get(name), int) for name in ("semaphore_over", "semaphore_rows"))
        if not known or fields.get("semaphore_parts") != 1:
            raise Refused("the schedule has no counters for sums that the first thread block stores (claims)")
        self.over, self.rows = int(fields["semaphore_over"]), int(fields["semaphore_rows"])

    def look(self, counters: ir.Value, over: ir.Value, place: Sequence[ir.Value]) -> None:
        """Asks for the counter of the queries at a `place`: batch, head and row."""
        batch, head, row = place
        heads, length = (memref.DimOp(over, build.index(n)).result for n in (1, 2))
        pair = arith.AddIOp(arith.MulIOp(batch, heads).result, head).result
        blocks = arith.CeilDivSIOp(length, build.index(self.rows)).result
        number = arith.AddIOp(arith.MulIOp(pair, blocks).result, arith.DivUIOp(row, build.index(self.rows)).result).result
        build.op("order_now", [counters, number], [number.type])
