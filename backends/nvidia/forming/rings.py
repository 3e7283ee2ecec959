"""Rings: buffers in shared memory whose stages copies fill and their users give back, with a barrier for each direction."""

from dataclasses import dataclass

from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import bytes_of
from attn_mlir.mlir import arith, ir, scf

SWIZZLE = 128
WARPS = 4
"""Warps of a warpgroup, each of which gives a stage back on its own."""


@dataclass(frozen=True)
class SharedRing:
    """A buffer with one stage for tiles of `source`. `count` numbers it among the rings of its kernel."""

    name: str
    source: ir.Value
    buffer: ir.Value
    count: int

    @property
    def tile(self) -> ir.MemRefType:
        """The type of the tile in a stage."""
        type_ = ir.MemRefType(self.buffer.type)
        return ir.MemRefType.get(type_.shape[1:], type_.element_type, memory_space=type_.memory_space)

    def at(self, count: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The tile of use number `count`, its stage and phase."""
        zero = build.index(0)
        with build.named(f"{self.name}_stage"):
            stage, phase = build.stage(count, 1)
        with build.named(f"{self.name}_tile"):
            tile = build.op("view", [self.buffer, stage, zero, zero], [self.tile]).result
        return tile, stage, phase


@dataclass(frozen=True)
class RingBuffer(SharedRing):
    """A ring with barriers: `full` counts what is copied, `free` who has given a stage back."""

    full: ir.Value
    free: ir.Value


def buffer(name: str, source: ir.Value, rows: int) -> ir.Value:
    """Shared memory of one stage for tiles of so many rows."""
    type_ = ir.MemRefType(source.type)
    with build.named(f"{name}_buffer"):
        return build.op("alloc", results=[build.shared_type([1, rows, type_.shape[3]], type_.element_type, SWIZZLE)]).result


def make(name: str, source: ir.Value, rows: int, count: int, warpgroups: int) -> RingBuffer:
    """A ring of one stage for tiles of so many rows, which all warps of so many warpgroups give back."""
    shared = buffer(name, source, rows)
    with build.named(f"{name}_full"):
        full = build.barrier(1, 1)
    with build.named(f"{name}_free"):
        free = build.barrier(1, WARPS * warpgroups)
    return RingBuffer(name, source, shared, count, full, free)


def fill(ring: RingBuffer, place: list[ir.Value], count: ir.Value, first: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Lets the `first` warpgroup copy the tile at `place` (batch, head, row) into use number `count` of a ring, and all wait for it.

    Gives the tile and the number of its stage.
    """
    tile, stage, phase = ring.at(count)
    branch = scf.IfOp(first)
    with ir.InsertionPoint(branch.then_block):
        build.op("wait", [ring.free, stage, arith.XOrIOp(phase, build.index(1)).result])
        with ir.InsertionPoint(build.elect()):
            build.op("arrive_expect", [ring.full, stage], bytes=bytes_of(ring.tile))
            build.op("copy_async", [ring.source, *place, build.index(0), tile, ring.full, stage])
        scf.YieldOp([])
    build.op("wait", [ring.full, stage, phase])
    return tile, stage


def give_back(ring: RingBuffer, stage: ir.Value) -> None:
    """Each warp is done with a stage."""
    build.op("arrive", [ring.free, stage])
