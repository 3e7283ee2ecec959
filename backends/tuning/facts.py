"""What a schedule depends on: the sizes and the work of one kernel, read from its function before tiling."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, pieces, walk

_EXPONENTIALS = {
    "math.exp": 1,
    "math.exp2": 1,
    "math.log": 1,
    "math.log2": 1,
    "math.tanh": 2,
    "math.sqrt": 1,
    "math.rsqrt": 1,
    "arith.divf": 1,
}
"""Operations that the special function unit computes, and how many of its instructions they take."""
_FREE = ("arith.constant", "attn.yield", "arith.extf", "arith.index_cast")


@dataclass(frozen=True)
class KernelFacts:
    """The sizes and the work of one kernel.

    `grid`: "rows", "pairs", "elements", or "chunks" (then `scan` tells all but `element`, and `scores` and `sums` are the columns of k and
    v). `element`: the type of q ("f16", ...). `scores`: the columns that each product of queries and
    keys sums over. `sums`: the columns of each sum that stays in registers (over keys for "rows", over queries for "pairs"). `spread`:
    those of sums that are added to memory (over keys, for "pairs"). `exponentials` and `instructions` are those for each pair.
    `masked`: some blocks are skipped or partial. `scan`: what a backend knows of a chunk scan, by its own reader.
    """

    grid: str
    element: str = "f16"
    scores: tuple[int, ...] = ()
    sums: tuple[int, ...] = ()
    spread: tuple[int, ...] = ()
    exponentials: float = 0.0
    instructions: float = 0.0
    masked: bool = False
    scan: Any = None

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of q."""
        return {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}.get(self.element, 4)

    @property
    def head_dims(self) -> tuple[int, int]:
        """The columns of q and k, and of v."""
        return (self.scores[0], self.sums[0]) if self.scores and self.sums else (0, 0)

    @property
    def columns(self) -> int:
        """All columns that a pair is multiplied with: a pair costs twice as many matrix FLOPs."""
        return sum(self.scores) + sum(self.sums) + sum(self.spread)


def facts_of(function: ir.Operation, read_scan: Callable[[ir.Operation], Any]) -> KernelFacts | None:
    """The facts of a function before `attn-tile`; None where it becomes no kernel. `read_scan` reads an `attn.chunk`."""
    for op in find_all(function, "attn.online"):
        return _rows(op)
    for op in find_all(function, "attn.pairs"):
        return _pairs(op)
    for op in find_all(function, "attn.chunk"):
        element = str(ir.RankedTensorType(op.operands[1].type).element_type)
        return KernelFacts("chunks", element, (_width(op.operands[1]),), (_width(op.operands[2]),), scan=read_scan(op))
    return KernelFacts("elements") if find_all(function, "attn.elements", "attn.row_dot") else None


def _rows(online: ir.Operation) -> KernelFacts:
    scores = [_width(online.operands[0]), *(_width(product.operands[0]) for product in pieces(online, "attn.product"))]
    accumulators = ir.IntegerAttr(online.attributes["accumulators"]).value if "accumulators" in online.attributes else 1
    sums = [_width(value) for value in online.results if len(ir.RankedTensorType(value.type).shape) == 4][:accumulators]
    sums += [_width(online.operands[2])] * (accumulators - len(sums))
    return _facts("rows", online, scores, sums, [], ("attn.score", "attn.step"))


def _pairs(pairs: ir.Operation) -> KernelFacts:
    scores = [_width(product.operands[0]) for product in pieces(pairs, "attn.product")]
    consumers = [use.owner.operation for use in pairs.results[0].uses]
    sums = [_width(op.operands[1]) for op in consumers if op.name == "attn.key_sum"]
    spread = [_width(op.operands[1]) for op in consumers if op.name == "attn.query_sum"]
    return _facts("pairs", pairs, scores, sums, spread, ("attn.pair",))


def _facts(grid: str, op: ir.Operation, scores: list[int], sums: list[int], spread: list[int], of_pairs: tuple[str, ...]) -> KernelFacts:
    tensors = op.operands if grid == "rows" else pieces(op, "attn.product")[0].operands
    element = str(ir.RankedTensorType(tensors[0].type).element_type)
    exponentials = instructions = 0.0
    for part in [part for name in of_pairs for part in pieces(op, name)]:
        along = _varying(part)
        for inner in walk(part):
            if inner in along and inner.name not in _FREE:
                exponentials += _EXPONENTIALS.get(inner.name, 0)
                instructions += 1
    masked = bool(pieces(op, "attn.mask"))
    return KernelFacts(grid, element, tuple(scores), tuple(sorted(sums)), tuple(spread), exponentials, instructions, masked)


def _varying(part: ir.Operation) -> list[ir.Operation]:
    """The ops of a piece that depend on the score or on the key's position: they run for every pair, the others once a row."""
    block = part.regions[0].blocks[0]
    varying: list[ir.Value] = []
    for argument in block.arguments:
        is_key = isinstance(argument.type, ir.IndexType) and argument.arg_number == len(block.arguments) - 1
        if argument.arg_number == 0 or is_key or (part.name == "attn.pair" and not isinstance(argument.type, ir.IndexType)):
            varying.append(argument)
    found = []
    for view in block.operations:
        op = view.operation
        if any(operand in varying for operand in op.operands):
            found.append(op)
            if op.name != "attn.reduce":  # its result is one number for a row
                varying += list(op.results)
    return found


def _width(value: ir.Value) -> int:
    return ir.RankedTensorType(value.type).shape[-1]
