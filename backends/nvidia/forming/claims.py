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
        parts = fields.get("semaphore_parts")
        if not known or not isinstance(parts, int):
            raise Refused("the schedule has no counters for sums that the first thread block stores (claims)")
        self.over, self.rows, self.parts = int(fields["semaphore_over"]), int(fields["semaphore_rows"]), parts

    def look(self, counters: ir.Value, over: ir.Value, place: Sequence[ir.Value], part: ir.Value) -> None:
        """Asks for the counter of the queries at a `place`: batch, head and row; `part`: of sums that warpgroups share by columns."""
        batch, head, row = place
        heads, length = (memref.DimOp(over, build.index(n)).result for n in (1, 2))
        pair = arith.AddIOp(arith.MulIOp(batch, heads).result, head).result
        blocks = arith.CeilDivSIOp(length, build.index(self.rows)).result
        number = arith.AddIOp(arith.MulIOp(pair, blocks).result, arith.DivUIOp(row, build.index(self.rows)).result).result
        if self.parts > 1:
            number = arith.AddIOp(arith.MulIOp(number, build.index(self.parts)).result, part).result
        build.op("order_now", [counters, number], [number.type])


def is_apart(queries: int, columns: int, warpgroups: int) -> bool:
    """Whether warpgroups share neither blocks of 64 `queries` nor `columns` of a sum over keys."""
    return queries % warpgroups != 0 and columns % (64 * warpgroups) != 0


def is_alone(key_sums: str, of: tuple[int, int], warpgroups: int) -> bool:
    """Whether one warpgroup makes a whole sum `of` blocks of 64 queries and columns, by the choice of that name."""
    return key_sums == "warpgroup" or (key_sums == "auto" and is_apart(*of, warpgroups))
