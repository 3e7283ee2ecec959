"""Rings: buffers in shared memory whose stages copies fill and their users give back, with a barrier for each direction."""

from dataclasses import dataclass

from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import bytes_of
from attn_mlir.mlir import arith, ir, scf

SWIZZLE = 128
WARPS = 4
"""Warps of a warpgroup, each of which gives a stage back on its own."""


@dataclass(frozen=True)
class Raw:
    """Where tiles land that are transposed before they are used: a buffer and its barriers, with as many stages as the ring."""

    buffer: ir.Value
    full: ir.Value
    free: ir.Value


@dataclass(frozen=True)
class RingBuffer:
    """A buffer with one stage for tiles of `source`. `count` numbers it among the rings of its kernel.

    With `raw`, it holds their transposes (`warp.transpose`): who copies also transposes.
    """

    name: str
    source: ir.Value
    buffer: ir.Value
    full: ir.Value
    free: ir.Value
    count: int
    raw: Raw | None = None

    @property
    def tile(self) -> ir.MemRefType:
        """The type of the tile in a stage."""
        return tile_of(self.buffer)


def tile_of(buffer: ir.Value) -> ir.MemRefType:
    """The type of the tile in a stage of a buffer."""
    type_ = ir.MemRefType(buffer.type)
    return ir.MemRefType.get(type_.shape[1:], type_.element_type, memory_space=type_.memory_space)


def make(name: str, source: ir.Value, rows: int, count: int, warpgroups: int, turned: bool = False) -> RingBuffer:
    """A ring of one stage for tiles of so many rows, which all warps of so many warpgroups give back; `turned`: for their transposes."""
    type_ = ir.MemRefType(source.type)
    shape = [rows, type_.shape[3]]
    raw = _frame(f"{name}_raw", shape, type_.element_type, (1, WARPS)) if turned else None
    frame = _frame(name, shape[::-1] if turned else shape, type_.element_type, (WARPS if turned else 1, WARPS * warpgroups))
    return RingBuffer(name, source, frame.buffer, frame.full, frame.free, count, raw)


def _frame(name: str, shape: list[int], element: ir.Type, arrivals: tuple[int, int]) -> Raw:
    """A buffer, and its barriers, which await so many arrivals when it is filled, and when it is given back."""
    row = shape[1] * element.width // 8
    with build.named(f"{name}_buffer"):
        buffer = build.op(
            "alloc", results=[build.shared_type([1, *shape], element, SWIZZLE if row % SWIZZLE == 0 else SWIZZLE // 2)]
        ).result
    with build.named(f"{name}_full"):
        full = build.barrier(1, arrivals[0])
    with build.named(f"{name}_free"):
        free = build.barrier(1, arrivals[1])
    return Raw(buffer, full, free)


def fill(ring: RingBuffer, place: list[ir.Value], count: ir.Value, first: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Lets the `first` warpgroup copy the tile at `place` (batch, head, row) into use number `count` of a ring, and all wait for it.

    Gives the tile and the number of its stage.
    """
    zero = build.index(0)
    with build.named(f"{ring.name}_stage"):
        stage, phase = build.stage(count, 1)
    with build.named(f"{ring.name}_tile"):
        tile = build.op("view", [ring.buffer, stage, zero, zero], [ring.tile]).result
    branch = scf.IfOp(first)
    with ir.InsertionPoint(branch.then_block):
        if ring.raw is None:
            _copy(ring, Raw(ring.buffer, ring.full, ring.free), place, tile, (stage, phase))
        else:
            with build.named(f"{ring.name}_raw_tile"):
                raw = build.op("view", [ring.raw.buffer, stage, zero, zero], [tile_of(ring.raw.buffer)]).result
            _copy(ring, ring.raw, place, raw, (stage, phase))
            build.op("wait", [ring.raw.full, stage, phase])
            build.op("wait", [ring.free, stage, arith.XOrIOp(phase, build.index(1)).result])
            build.op("transpose", [raw, tile])
            # Products read what these warps have written.
            build.op("fence_async")
            build.op("arrive", [ring.raw.free, stage])
            build.op("arrive", [ring.full, stage])
        scf.YieldOp([])
    build.op("wait", [ring.full, stage, phase])
    return tile, stage


def _copy(ring: RingBuffer, to: Raw, place: list[ir.Value], tile: ir.Value, use: tuple[ir.Value, ir.Value]) -> None:
    """Waits until a stage is free, and lets one thread copy a tile there."""
    stage, phase = use
    build.op("wait", [to.free, stage, arith.XOrIOp(phase, build.index(1)).result])
    with ir.InsertionPoint(build.elect()):
        build.op("arrive_expect", [to.full, stage], bytes=bytes_of(tile.type))
        build.op("copy_async", [ring.source, *place, build.index(0), tile, to.full, stage])


def give_back(ring: RingBuffer, stage: ir.Value) -> None:
    """Each warp is done with a stage."""
    build.op("arrive", [ring.free, stage])
