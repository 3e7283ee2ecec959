"""Computation on fragments: maps over their elements, reductions along rows, votes."""

import math
from collections.abc import Sequence
from typing import Any

from attn_mlir.dialects.regions import walk
from attn_mlir.dialects.verify import check, entry_block, terminator
from attn_mlir.dialects.warp.dialect import Warp
from attn_mlir.dialects.warp.kinds import STEP, in_form, inside, is_shared, is_tile
from attn_mlir.dialects.warp.layouts import fragment
from attn_mlir.mlir import ext, ir

REDUCTIONS = ("sum", "max", "min")
_SHARED_COLUMNS = 128
"""Those whose bits of dropout the lanes of a warp make at a time."""


class MapOp(Warp.Operation, name="map", traits=[ext.Pure]):
    """Computes fragments element by element, as `tile.map` does tiles; `shape` is that of the tile, parts or row values that it goes over.

    The region takes an element's place, (i, j) or (i), reads fragments there by `tensor.extract` (row values at i), and yields an element
    of each result. `reductions` has an entry for each result: "" for one of the map's shape; "sum", "max" or "min" for one of parts, in
    which each thread reduces what it has of a row. A result of index arithmetic, such as the last column that a row sees, may be i32.

    It may also read a tile of its shape in shared memory at the element's own place (`memref.load`), (i, j), or, of its transpose, (j, i).
    """

    reductions: ir.ArrayAttr
    shape: Any
    first: Sequence[ext.Result[Any]]
    second: Sequence[ext.Result[Any]]
    third: Sequence[ext.Result[Any]]
    body: ext.Region

    def verify_invariants(self) -> bool:
        types = [r.type for r in self.operation.results]
        found, attributes = [in_form(t, "tile", "rows", "parts") for t in types], self.operation.attributes
        if not check(
            self, bool(found) and all(found) and len({f.instruction for f in found if f}) == 1, "makes fragments of one instruction"
        ):
            return False
        kinds = [ir.StringAttr(k).value if isinstance(k, ir.StringAttr) else None for k in attributes["reductions"]]
        known = len(kinds) == len(found) and {*kinds} <= {"", *REDUCTIONS}
        if not check(self, known, f'has "" or one of {", ".join(REDUCTIONS)} for each result'):
            return False
        if not check(self, isinstance(self.shape, ir.DenseI64ArrayAttr), f"takes `shape` as array<i64>, got {self.shape}"):
            return False
        shape = tuple(self.shape)
        fits = all(f.form == "parts" and len(shape) == 2 if kind else f.shape == shape for f, kind in zip(found, kinds, strict=True) if f)
        return check(self, fits, f"makes fragments of its shape {'x'.join(map(str, shape))}, and reduces to parts")

    def verify_region_invariants(self) -> bool:
        block, rank = entry_block(self), len(self.shape)
        places = list(block.arguments) if block else []
        fits = len(places) == rank and all(isinstance(p.type, ir.IndexType) for p in places)
        if not check(self, fits, f"region takes {rank} indices, got ({', '.join(str(p.type) for p in places)})"):
            return False
        last = terminator(block) if block else None
        got = [v.type for v in last.operation.operands] if last is not None and last.operation.name == "warp.yield" else None
        wanted = [r.type.element_type for r in self.operation.results]
        if not check(self, got == wanted, f"ends in a 'warp.yield' of ({', '.join(map(str, wanted))})"):
            return False
        reads = [op for op in walk(self) if op.name == "tensor.extract" and fragment(op.operands[0].type)]
        own = all(list(op.operands)[1:] == places[: len(op.operands) - 1] and self._at(op.operands[0].type) for op in reads)
        if not check(self, own, "reads fragments at the element's own place"):
            return False
        loads = [op for op in walk(self) if op.name == "memref.load" and is_tile(op.operands[0].type)]
        turns = [(list(op.operands)[1:], list(op.operands[0].type.shape)) for op in loads]
        fits = all(turn in ((places, list(self.shape)), (places[::-1], list(self.shape)[::-1])) for turn in turns)
        return check(self, fits, "reads tiles of its shape in shared memory at the element's own place")

    def _at(self, read: ir.Type) -> bool:
        """Whether a fragment has an element, or a row value, for each place of the map."""
        found, own = fragment(read), fragment(self.operation.results[0].type)
        same = found is not None and own is not None and found.instruction == own.instruction
        return same and found is not None and list(found.shape) == list(self.shape)[: len(found.shape)]


class DropOp(Warp.Operation, name="drop", traits=[ext.Pure]):
    """Elements of a tile of 16 bits, but 0 where dropout drops them: the region takes an element's place, (i, j), and yields if it is kept.

    Each lane makes the bits of some rows and 64 columns for its warp, which hands them around in its part of `bits` in shared memory,
    memref<1 x n x i32>: four numbers of each 64 columns and row of all warpgroups of the role. So many rounds of Philox as `unroll` says
    are printed one after the other.
    """

    tile: ext.Operand[Any]
    bits: ext.Operand[Any]
    unroll: ir.IntegerAttr
    result: ext.Result[Any]
    body: ext.Region

    def verify_invariants(self) -> bool:
        made, own, bits = in_form(self.tile.type, "tile"), self.tile.type == self.result.type, self.bits.type
        fits = made is not None and made.element in ("f16", "bf16") and own and made.shape[1] % _SHARED_COLUMNS == 0
        if not check(self, fits, f"makes a tile of f16 or bf16, of a multiple of 128 columns, of one of its type, got {self.result.type}"):
            return False
        numbers = math.prod(self.tile.type.shape) // 16
        room = is_shared(bits, 2) and str(bits.element_type) == "i32" and bits.shape[1] % numbers == 0
        return check(self, room, f"has {numbers} i32 for each warpgroup, got {bits}")

    def verify_region_invariants(self) -> bool:
        block = entry_block(self)
        places = [argument.type for argument in block.arguments] if block else []
        if not check(self, len(places) == 2 and all(isinstance(p, ir.IndexType) for p in places), "region takes a place, two indices"):
            return False
        last = terminator(block) if block else None
        got = [str(v.type) for v in last.operation.operands] if last is not None and last.operation.name == "warp.yield" else None
        return check(self, got == ["i1"], "region ends in a 'warp.yield' of one bit")


class ReduceOp(Warp.Operation, name="reduce", traits=[ext.Pure]):
    """Row values from the parts that the threads of a row have: exchanges between lanes.

    A linear sum of parts that a loop carries is reduced once, after the loop.
    """

    parts: ext.Operand[Any]
    kind: ir.StringAttr
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        parts, rows = in_form(self.parts.type, "parts"), in_form(self.result.type, "rows")
        fits = parts is not None and rows is not None and (parts.instruction, parts.element) == (rows.instruction, rows.element)
        return check(self, fits, f"makes row values of parts, got {self.result.type} of {self.parts.type}") and check(
            self, self.kind.value in REDUCTIONS, f"reduces by {', '.join(REDUCTIONS)}, got '{self.kind.value}'"
        )


class ColumnsOp(Warp.Operation, name="columns", traits=[ext.Pure]):
    """Columns of a tile in registers, from number `first` on: as many as the result has. `first` is a multiple of 16."""

    tile: ext.Operand[Any]
    first: ir.IntegerAttr
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        whole, part = in_form(self.tile.type, "tile"), in_form(self.result.type, "tile")
        same = whole is not None and part is not None and (whole.instruction, whole.element) == (part.instruction, part.element)
        if not check(self, same, f"gives columns of a tile, got {self.result.type} of {self.tile.type}"):
            return False
        (rows, columns), (others, own), first = self.tile.type.shape, self.result.type.shape, self.first.value
        fits = rows == others and first % STEP == 0 and own % STEP == 0 and 0 <= first <= columns - own
        return check(self, fits, f"begins and ends at multiples of {STEP} of {columns} columns, got {own} from {first} on")


class VoteOp(Warp.Operation, name="vote", traits=[ext.Pure]):
    """Whether a condition holds for some element that the warp has. In `warp.each_warp`."""

    condition: ext.Operand[Any]
    result: ext.Result[ir.IntegerType[1]] = ext.infer_result()

    def verify_invariants(self) -> bool:
        type_ = self.condition.type
        found = in_form(type_, "tile", "rows", "parts")
        return check(
            self, found is not None and found.element == "i1", f"asks for a tile, row values or parts of i1, got {type_}"
        ) and check(self, inside(self, "warp.each_warp"), "asks one warp: it stands in 'warp.each_warp'")


class ReachesOp(Warp.Operation, name="reaches", traits=[ext.Pure]):
    """Whether an element of 16 bits that the warp has is `limit` or more, or NaN. No element is negative, as of exponentials.

    In `warp.each_warp`. Bits of such numbers are ordered as they are, so that pairs of them are compared as integers.
    """

    tile: ext.Operand[Any]
    limit: ir.FloatAttr
    result: ext.Result[ir.IntegerType[1]] = ext.infer_result()

    def verify_invariants(self) -> bool:
        type_, limit = self.tile.type, self.limit
        found = in_form(type_, "tile")
        return (
            check(self, found is not None and found.element in ("f16", "bf16"), f"asks for a tile of f16 or bf16, got {type_}")
            and check(
                self, limit.type == type_.element_type and limit.value > 0, f"has a `limit` above 0 of the tile's elements, got {limit}"
            )
            and check(self, inside(self, "warp.each_warp"), "asks one warp: it stands in 'warp.each_warp'")
        )
