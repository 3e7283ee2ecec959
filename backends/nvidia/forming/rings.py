"""Rings: buffers in shared memory whose stages copies fill and their users give back, with a barrier for each direction."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.dialects.numbers import i64
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.copies import TURNED
from attn_mlir.dialects.warp.kinds import STEP, bytes_of, padded, stages_and_arrivals
from attn_mlir.mlir import arith, ir, scf
from attn_mlir.passes.regions import find_all, maker

SWIZZLE = 128
MOST_COLUMNS = 256
WARPS = 4
"""Warps of a warpgroup, each of which gives a stage back on its own."""


@dataclass(frozen=True)
class Raw:
    """Where tiles land that are transposed before they are used: a buffer and its barriers, with as many stages as the ring."""

    buffer: ir.Value
    full: ir.Value
    free: ir.Value


@dataclass(frozen=True)
class SharedRing:
    """A buffer with one stage for tiles of `source`. `count` numbers it among the rings of its kernel.

    `turned`: it holds their transposes. With `raw` who copies also transposes (`warp.transpose`), else that was done before the kernel.
    """

    name: str
    source: ir.Value
    buffer: ir.Value
    count: int
    raw: Raw | None
    turned: bool

    @property
    def tile(self) -> ir.MemRefType:
        """The type of the tile in a stage."""
        return tile_of(self.buffer)

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
    return _shared(name, [rows, padded(type_.shape[3])], type_.element_type)


def _shared(name: str, shape: list[int], element: ir.Type) -> ir.Value:
    """Shared memory for one tile: of 8-bit elements swizzled over as many bytes as its rows allow, else over as many as possible."""
    swizzle = swizzle_of_row(shape[1]) if is_eight_bit(element) else SWIZZLE
    with build.named(f"{name}_buffer"):
        return build.op("alloc", results=[build.shared_type([1, *shape], element, swizzle)]).result


def swizzle_of_row(columns: int) -> int:
    """Bytes of a swizzle atom of rows of so many 8-bit elements."""
    return next((size for size in (SWIZZLE, SWIZZLE // 2) if columns % size == 0), SWIZZLE // 4)


def check_columns(type_: ir.MemRefType, partial: bool, step: int = STEP) -> None:
    """Raises Refused where rows do not fit swizzled tiles; `partial`: those of 16 bits may end within a swizzle atom, as TMA copies them.

    The rest of it is zeros then. They have a multiple of `step` elements.
    """
    columns = 0 if type_.is_dynamic_dim(3) else type_.shape[3]
    if columns in (64, 128, 192, 256):
        return
    partial = partial and type_.element_type.width == 16
    if not partial or columns % step or not 0 < columns <= MOST_COLUMNS:
        which = f"a multiple of {step} up to {MOST_COLUMNS}" if partial else "64, 128, 192 or 256"
        raise Refused(f"rows of {which} elements fit swizzled tiles, not those of {type_}")


def tile_of(buffer: ir.Value) -> ir.MemRefType:
    """The type of the tile in a stage of a buffer."""
    type_ = ir.MemRefType(buffer.type)
    return ir.MemRefType.get(type_.shape[1:], type_.element_type, memory_space=type_.memory_space)


def make(name: str, source: ir.Value, shape: list[int], count: int, warpgroups: int, turned: str = "") -> RingBuffer:
    """A ring of one stage for tiles of this shape, which all warps of so many warpgroups give back.

    `turned`: for their transposes, which are made "here", by who copies, or "ahead", before the kernel.
    """
    type_, here = ir.MemRefType(source.type), turned == "here"
    raw = _frame(f"{name}_raw", shape, type_.element_type, (1, WARPS)) if here else None
    frame = _frame(name, shape[::-1] if turned else shape, type_.element_type, (WARPS if here else 1, WARPS * warpgroups))
    return RingBuffer(name, source, frame.buffer, count, raw, bool(turned), frame.full, frame.free)


def _frame(name: str, shape: list[int], element: ir.Type, arrivals: tuple[int, int]) -> Raw:
    """A buffer, and its barriers, which await so many arrivals when it is filled, and when it is given back."""
    shared = _shared(name, shape, element)
    with build.named(f"{name}_full"):
        full = build.barrier(1, arrivals[0])
    with build.named(f"{name}_free"):
        free = build.barrier(1, arrivals[1])
    return Raw(shared, full, free)


def fill(
    ring: RingBuffer, place: list[ir.Value], count: ir.Value, first: ir.Value, before: Callable[[], None] | None = None
) -> tuple[ir.Value, ir.Value]:
    """Lets the `first` warpgroup copy the tile at `place` (batch, head, row, column) into use number `count` of a ring; all wait for it.

    Gives the tile and the number of its stage. `before` makes what that warpgroup does before.
    """
    tile, stage, phase = ring.at(count)
    branch = scf.IfOp(first)
    with ir.InsertionPoint(branch.then_block):
        if before is not None:
            before()
        if ring.raw is None:
            _copy(ring, Raw(ring.buffer, ring.full, ring.free), place, tile, (stage, phase))
        else:
            with build.named(f"{ring.name}_raw_tile"):
                raw = build.op("view", [ring.raw.buffer, stage, build.index(0), build.index(0)], [tile_of(ring.raw.buffer)]).result
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
        copy = build.op("copy_async", [ring.source, *place, tile, to.full, stage])
        if ring.turned and ring.raw is None:
            copy.attributes[TURNED] = ir.UnitAttr.get()


def give_back(ring: RingBuffer, stage: ir.Value) -> None:
    """Each warp is done with a stage."""
    build.op("arrive", [ring.free, stage])


@dataclass(frozen=True)
class GivenBack:
    """A stage of a ring that a role gives back: its buffer, its number, and the arrival that does it."""

    buffer: ir.Value
    stage: ir.Value
    arrival: ir.Operation


def stage_given_back(role: ir.Operation, op: ir.Operation, wanted: ir.Type) -> GivenBack | None:
    """The stage that a role gives back before an op, in the op's block, of a ring of one stage whose buffer has this type; None without."""
    views = {view.operands[1]: view.operands[0] for view in find_all(role, "warp.view") if view.operands[0].type == wanted}
    ops = [view.operation for view in op.block.operations]
    arrivals = [each for each in ops[: ops.index(op)] if each.name == "warp.arrive" and each.operands[1] in views]
    if len(arrivals) != 1:
        return None
    stage = arrivals[0].operands[1]
    return GivenBack(views[stage], stage, arrivals[0])


def depth(op: ir.Operation) -> int:
    """How many loops an op stands in."""
    above, found = op.parent, 0
    while above is not None:
        found += above.operation.name == "scf.for"
        above = above.operation.parent
    return found


def deepen(kernel: ir.Operation, wanted: Mapping[ir.Value, int]) -> None:
    """Gives rings of one stage, their buffers and barriers, so many. Raises Refused where shared memory does not hold them."""
    used = sum(bytes_of(op.results[0].type) for op in find_all(kernel, "warp.alloc"))
    more = sum((stages - 1) * bytes_of(value.type) for value, stages in wanted.items() if isinstance(value.type, ir.MemRefType))
    limit = ir.IntegerAttr(kernel.attributes["shared_limit"]).value
    if used + more > limit:
        told = " and ".join(map(str, sorted(set(wanted.values()))))
        raise Refused(f"{told} stages take {used + more} bytes of shared memory, there are {limit}")
    counts = {
        op: stages
        for value, stages in wanted.items()
        for use in value.uses
        for operand in use.owner.operation.operands
        if (op := maker(operand, "warp.stage")) is not None
    }
    with kernel.location:
        for value, stages in wanted.items():
            value.set_type(_with_stages(value.type, stages))
    for op, stages in counts.items():
        op.attributes["stages"] = i64(stages)


def stages_of(type_: ir.Type) -> int:
    """Of a ring's buffer or barriers."""
    return type_.shape[0] if isinstance(type_, ir.MemRefType) else stages_and_arrivals(type_)[0]


def _with_stages(type_: ir.Type, stages: int) -> ir.Type:
    if isinstance(type_, ir.MemRefType):
        return ir.MemRefType.get([stages, *type_.shape[1:]], type_.element_type, memory_space=type_.memory_space)
    return build.barrier_type(stages, stages_and_arrivals(type_)[1])
