"""A `warp.kernel` for chips without TMA and wgmma: each warp multiplies its own rows, and copies its share of what all read."""

from dataclasses import dataclass

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.facts import ALL, SCHEDULE, THREADS
from attn_mlir.backends.nvidia.forming.kernel import Former, Loaded
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.forming.rings import WARPS, SharedRing
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir, memref, scf
from attn_mlir.passes.regions import find_all

_INSTRUCTIONS = {16: "mma16", 32: "mma32"}
"""By the rows of a warp."""
_COPIED = 8
"""The rows that a warp copies at least, the height of a swizzle."""
NARROW = 64
"""Columns of the widest tile with which a warp has registers for 32 rows."""


@dataclass
class SynchronousFormer(Former):
    """One role; every product is one of registers and shared memory that is done when the next op begins.

    A warp has 16 or 32 rows (`warp_rows` in the schedule; without it 32 where rows are narrow, so that what it reads of keys and values
    serves two products). A load is a meeting of all warps, behind which nobody reads the stage, the copies of all lanes, a wait for them,
    and another meeting, behind which everybody may read it.
    """

    def _share_rows(self) -> None:
        asked = attributes.read(self.function, attributes.SCHEDULE).get("warp_rows", 0)
        self.rows = WARPS * int(asked or self._usual_rows())
        if self.rows // WARPS not in _INSTRUCTIONS:
            raise Refused(f"a warp has 16 or 32 rows, not {self.rows // WARPS}")
        self.instruction = _INSTRUCTIONS[self.rows // WARPS]
        self.warpgroups, left = divmod(self.block, self.rows)
        if left or self.warpgroups not in (1, 2):
            raise Refused(
                f"a block has {self.rows} or {2 * self.rows} rows, {self.rows // WARPS} for each of 4 or 8 warps, not {self.block}"
            )

    def _usual_rows(self) -> int:
        """Of a warp, where nothing was chosen."""
        return 32 if self.block % 128 == 0 and self._widest() <= NARROW else 16

    def _widest(self) -> int:
        """Columns of the widest tile that is loaded."""
        loads = [ir.RankedTensorType(op.results[0].type) for op in find_all(self.function, "tile.load")]
        return max((type_.shape[1] for type_ in loads if type_.rank == 2), default=0)

    def _frame(self) -> ir.Operation:
        kernel = super()._frame()
        kernel.attributes[SCHEDULE] = attributes.write({**attributes.read(kernel, SCHEDULE), "arch": self.target.arch})
        return kernel

    def _ring(self, name: str, source: ir.Value, shape: list[int], turned: str) -> SharedRing:
        if ir.MemRefType(source.type).element_type.width == 8:
            raise Refused(f"{self.target.arch} has no 8-bit matrix instructions")
        if shape[0] % (_COPIED * WARPS * self.warpgroups):
            raise Refused(f"{WARPS * self.warpgroups} warps copy a multiple of {_COPIED} rows each, not {shape[0]} together")
        return SharedRing(name, source, rings.buffer(name, source, shape[0]), len(self.rings), None, False)

    def _filled(self, ring: SharedRing, place: list[ir.Value]) -> tuple[ir.Value, ir.Value]:
        tile, stage, _ = ring.at(self.counts[ring.count])
        batch, head, row, column = place
        share, type_ = ring.tile.shape[0] // self.warpgroups, ring.tile
        first = arith.MulIOp(self.warpgroup, build.index(share)).result
        own = ir.MemRefType.get([share, type_.shape[1]], type_.element_type, memory_space=type_.memory_space)
        with build.named(f"{ring.name}_share"):
            target = build.op("view", [ring.buffer, stage, first, build.index(0)], [own]).result
        self._meet()
        batch = self._inside_of(ring.source, batch)
        build.op("copy_lanes_async", [ring.source, batch, head, arith.AddIOp(row, first).result, column, target])
        build.op("copy_commit")
        build.op("copy_wait", pending=0)
        self._meet()
        return tile, stage

    def _store(self, op: ir.Operation) -> None:
        """Where rows are heads of a group, only those of a sequence that has a query: its entry is the next one's else."""
        if self.packed is None or op.operands[1] in self.packed.views:
            super()._store(op)
            return
        some = arith.CmpIOp(arith.CmpIPredicate.sgt, self._value(op.operands[5]), build.index(0)).result
        branch = scf.IfOp(some)
        with ir.InsertionPoint(branch.then_block):
            super()._store(op)
            scf.YieldOp([])

    def _inside_of(self, source: ir.Value, batch: ir.Value) -> ir.Value:
        """An entry of a tensor: where sequences without a query come last, theirs would be none."""
        if self.packed is None or any(self.known[view] == source for view in self.packed.views):
            return batch
        last = arith.SubIOp(memref.DimOp(source, build.index(0)).result, build.index(1)).result
        return arith.MinSIOp(batch, last).result

    def _meet(self) -> None:
        build.op("named_sync", [build.index(ALL)], threads=THREADS * self.warpgroups)

    def _give_back(self, tile: Loaded) -> None:
        """The meeting before the next copies does it."""

    def _multiply(self, sums: ir.Value | None, left: ir.Value, right: ir.Value, transpose_b: bool, type_: ir.Type) -> ir.Value:
        return build.op(
            "mma", [self._zeros(type_) if sums is None else sums, left, right], [type_], transpose_a=False, transpose_b=transpose_b
        ).result

    def _zeros(self, type_: ir.Type) -> ir.Value:
        tile = ir.RankedTensorType(type_)
        zero = arith.ConstantOp(tile.element_type, 0.0).result
        return build.map_(tile.shape, [type_], [""], lambda *places: [zero])[0]
