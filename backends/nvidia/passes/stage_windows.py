"""Lets windows of captured tensors come to shared memory with blocks of keys, instead of element by element to every thread."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.facts import chosen, wanted
from attn_mlir.backends.nvidia.forming.kernel import ROWS
from attn_mlir.backends.nvidia.forming.maps import INSTRUCTION
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.backends.nvidia.forming.window_places import WindowRead, copies_before, depends, read_of
from attn_mlir.backends.nvidia.passes.specialize_warps import is_alone
from attn_mlir.dialects.numbers import number
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.barriers import IN_TURN
from attn_mlir.dialects.warp.kinds import bytes_of
from attn_mlir.dialects.warp.layouts import fragment
from attn_mlir.dialects.warp.windows import WINDOW_SWIZZLE
from attn_mlir.mlir import arith, ir, memref
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import erase_unused, find_all, maker

_LANES = 32
"""Of the warp that copies: each arrives once."""
_STEP = 16
"""Columns that maps read at once."""
_BARRIERS = 1024
"""Bytes left for barriers and numbers."""


@dataclass(frozen=True)
class StageWindows(Pass):
    """Where maps read a captured tensor at their own rows and columns, as dense biases are, copies a window of it for each block of keys to
    shared memory (`warp.copy_window_async`), and lets the maps read that, each warpgroup 64 rows. Rows go along one dimension of the
    tensor, columns along the last one; in backward passes, whose maps have rows of keys, columns along one and rows along the last one.
    Each warpgroup has a ring of its own, of `stages` stages or as many as the schedule says (`windows`), two without either, and fewer
    where they do not fit beside the stages of what the loop copies; it is as often used as the first of its rings. Where all batch
    entries read the same windows, tiles of a head's entries follow each other, so that these are in the second level cache.

    Runs before `warp-specialize`. A kernel stays as it is, with the reason in `warp.refused`, where no map reads so, windows do not fit, or
    the schedule has 0: then its maps read element by element.
    """

    name = "warp-stage-windows"
    stages: int = 0

    def run(self, module: ir.Operation) -> bool:
        if self.stages < 0:
            module.location.emit_error(f"{self.name}: `stages` must not be negative, got {self.stages}")
            return False
        change_kernels(module, self.name, self._stage)
        return True

    def _stage(self, kernel: ir.Operation) -> None:
        if not self.stages and not wanted(kernel, "windows"):
            raise Refused("the schedule has no stages of windows")
        stages = chosen(kernel, "windows", self.stages, max(thresholds.WINDOW_STAGES))
        rings_ = _rings(kernel)
        with kernel.location:
            depth = _fitting(kernel, sum(ring.bytes for ring in rings_), stages)
        if _share_batches(kernel, rings_):
            rings_ = _rings(kernel)  # the numbers of heads and entries have been replaced
        for ring in rings_:
            ring.stage(depth)


def _rings(kernel: ir.Operation) -> "list[WindowRing]":
    """Rings of windows that maps of a kernel read. Raises Refused without any."""
    loads = [op for op in find_all(kernel, "memref.load") if _columns(op)]
    reads: list[WindowRead] = []
    change_parts(loads, lambda load: reads.append(read_of(load, kernel)), "no map reads a captured tensor at its rows and columns")
    windows: dict[object, list[WindowRead]] = {}
    for read in reads:
        windows.setdefault(read.key, []).append(read)
    found: dict[tuple[object, ...], list[StagedWindow]] = {}
    for each in windows.values():
        window = StagedWindow(kernel, each)
        alike = [kept for kept in found if kept[:-1] == window.key and all(other.loop != window.loop for other in found[kept])]
        key = alike[0] if alike else (*window.key, len(found))
        found.setdefault(key, []).append(window)
    made: list[WindowRing] = []
    change_parts(found.values(), lambda each: made.append(WindowRing(kernel, each)), "no map reads a captured tensor")
    return made


def _columns(load: ir.Operation) -> int:
    """Those of the map over tiles of wgmma in which a load of a tensor stands; 0 elsewhere."""
    if not isinstance(load.operands[0].owner, ir.Block):
        return 0
    map_ = load.parent.operation if load.parent is not None else None
    if map_ is None or map_.name != "warp.map" or len(list(map_.attributes["shape"])) != 2:
        return 0
    found = fragment(map_.results[0].type)
    rows, columns = map_.attributes["shape"]
    return columns if found is not None and found.instruction == INSTRUCTION and rows == ROWS else 0


def _fitting(kernel: ir.Operation, size: int, stages: int) -> int:
    """How many stages of windows fit, of which one has so many bytes, beside the stages that rings of inner loops get. Raises Refused."""
    inner = {op.operands[5].owner.operation.operands[0] for op in find_all(kernel, "warp.copy_async") if rings.depth(op) > 1}
    keys = chosen(kernel, "stages", 0, thresholds.WARP_STAGES)
    used = sum(bytes_of(op.results[0].type) for op in find_all(kernel, "warp.alloc"))
    used += sum((keys - 1) * bytes_of(buffer.type) for buffer in inner)
    limit = number(kernel, "shared_limit") - _BARRIERS
    fit = min(stages, (limit - used) // size)
    if fit < 1:
        raise Refused(f"a stage of windows takes {size} bytes beside {used}, there are {limit}")
    return fit


@dataclass
class StagedWindow:
    """A window that some maps of a loop read, and the copy of keys with which it comes."""

    kernel: ir.Operation
    reads: list[WindowRead]

    def __post_init__(self) -> None:
        first = self.reads[0]
        self.source, self.block, self.loop = first.source, first.block, first.block.owner.operation
        columns = list(first.map_.attributes["shape"])[1]
        if columns % _STEP:
            raise Refused(f"maps read windows of a multiple of {_STEP} columns, not {columns}")
        self.shape = (columns, ROWS) if first.turned else (ROWS, columns)
        ops = [view.operation for view in self.block.operations]
        tops = sorted(ops.index(read.top) for read in self.reads)
        self.first, self.last = ops[tops[0]], ops[tops[-1]]
        self.issue = copies_before(self.first, lambda op: is_alone(op, first.warpgroup, "warp.copy_async"))
        self.copy = find_all(self.issue, "warp.copy_async")[0]
        self.keys, self.count = self.copy.operands[6], self.copy.operands[7].owner.operation.operands[0]
        inside = [value for terms in first.terms for value in terms if not isinstance(value.owner, ir.Block)]
        if any(op.block == self.block and ops.index(op) > ops.index(self.issue) for op in (v.owner.operation for v in inside)):
            raise Refused("where a window is depends on what is computed after the keys were copied")

    @property
    def key(self) -> tuple[object, ...]:
        """What windows of several loops have in common that may have one ring."""
        return self.source, self.shape, self.reads[0].turned, self.keys

    def stage(self, ring: "WindowRing", frame: tuple[ir.Value, ir.Value, ir.Value], depth: int) -> None:
        """Makes its copies, one a warpgroup, beside those of the keys, and its reads. `frame`: buffer, and barriers full and free."""
        (buffer, full, free), read = frame, self.reads[0]
        with self.first.location, ir.InsertionPoint(self.issue), build.named("window_stage"):
            stage, phase = build.stage(self.count, depth)
        with self.first.location, ir.InsertionPoint(self.issue.regions[0].blocks[0].operations[-1]):
            other = arith.XOrIOp(phase, build.index(1)).result
            for warpgroup in range(ring.warpgroups):
                at = arith.AddIOp(build.index(warpgroup * depth), stage).result
                wait = build.op("wait", [free, at, other])
                wait.attributes[IN_TURN] = ir.UnitAttr.get()
                places = [read.place(n, warpgroup * ROWS) for n in range(len(read.terms))]
                build.op("copy_window_async", [self.source, *places, ring.view(buffer, at), full, at], rows=read.rows)
        with self.first.location, ir.InsertionPoint(self._wait()):
            own = arith.AddIOp(arith.MulIOp(read.warpgroup, build.index(depth)).result, stage).result
            tile = ring.view(buffer, own)
            build.op("wait", [full, own, phase])
        with self.last.location, ir.InsertionPoint.after(self.last):
            build.op("arrive", [free, own])
        for read in self.reads:
            with read.load.location, ir.InsertionPoint(read.load):
                operands = [tile, *list(read.load.block.arguments)[:: -1 if read.turned else 1]]
                made = ir.Operation.create("memref.load", results=[read.load.results[0].type], operands=operands).result
            read.load.results[0].replace_all_uses_with(made)
            read.load.erase()
            erase_unused(read.map_.regions[0].blocks[0])

    def _wait(self) -> ir.Operation:
        """Before which op warps wait for a window: the wait for the product before the first map that reads it.

        So nothing else stands between a product and the maps of its scores.
        """
        ops = [view.operation for view in self.block.operations]
        before = [op for op in ops[ops.index(self.issue) : ops.index(self.first)] if op.name == "warp.mma_wait"]
        return before[-1] if before else self.first


@dataclass
class WindowRing:
    """The ring of a window of each loop over keys: it is used as often as that of the keys. Raises Refused where some loop has none."""

    kernel: ir.Operation
    windows: list[StagedWindow]

    def __post_init__(self) -> None:
        first = self.windows[0]
        copies = [op for op in find_all(self.kernel, "warp.copy_async") if op.operands[6] == first.keys]
        if len(copies) != len(self.windows) or any(window.copy not in copies for window in self.windows):
            raise Refused("only some of the loops over keys read a captured tensor at their rows and columns")
        self.role = next(op for op in find_all(self.kernel, "warp.role") if first.reads[0].warpgroup.owner == op.regions[0].blocks[0])
        self.warpgroups, self.element = number(self.role, "warpgroups"), ir.MemRefType(first.source.type).element_type

    @property
    def tile(self) -> ir.MemRefType:
        """The type of a warpgroup's window."""
        type_ = build.shared_type([1, *self.windows[0].shape], self.element, WINDOW_SWIZZLE)
        return ir.MemRefType.get(type_.shape[1:], self.element, memory_space=type_.memory_space)

    @property
    def bytes(self) -> int:
        """Of a stage of all warpgroups' windows."""
        return self.warpgroups * bytes_of(self.tile)

    def stage(self, depth: int) -> None:
        """Makes the ring, of so many stages for each warpgroup, and all that uses it."""
        count = self.warpgroups * depth
        with self.windows[0].first.location, ir.InsertionPoint(self.role):
            with build.named("window_buffer"):
                buffer = build.op("alloc", results=[build.shared_type([count, *self.tile.shape], self.element, WINDOW_SWIZZLE)]).result
            with build.named("window_full"):
                full = build.barrier(count, _LANES)
            with build.named("window_free"):
                free = build.barrier(count, rings.WARPS)
        for window in self.windows:
            window.stage(self, (buffer, full, free), depth)

    def view(self, buffer: ir.Value, stage: ir.Value) -> ir.Value:
        """The window in a stage."""
        with build.named("window_tile"):
            return build.op("view", [buffer, stage, build.index(0), build.index(0)], [self.tile]).result


def _share_batches(kernel: ir.Operation, rings_: list[WindowRing]) -> bool:
    """Lets tiles of batch entries of a head follow each other, where all of them read the same windows; whether they do."""
    if find_all(kernel, "warp.order_wait"):
        return False  # tiles wait for others, whose numbers come before
    windows = [window for ring in rings_ for window in ring.windows]
    batch = windows[0].copy.operands[1]
    made = maker(batch, "arith.divsi")
    others = [use.owner.operation for use in made.operands[0].uses] if made is not None else []
    heads = [op for op in others if op.name == "arith.remsi" and made is not None and list(op.operands) == list(made.operands)]
    queries = [op for op in find_all(kernel, "warp.copy_async") if rings.depth(op) == 1 and op.operands[1] == batch]
    if made is None or len(heads) != 1 or len(others) != 2 or not queries:
        return False  # also where something else is known by the number of both, which changes
    if any(depends(value, batch) for window in windows for terms in window.reads[0].terms for value in terms):
        return False
    pair = made.operands[0]
    with made.location, ir.InsertionPoint(rings_[0].role), build.named("batches"):
        batches = memref.DimOp(queries[0].operands[0], build.index(0)).result
    for op, other in ((heads[0], arith.DivSIOp), (made, arith.RemSIOp)):
        with op.location, ir.InsertionPoint(op):
            op.results[0].replace_all_uses_with(other(pair, batches).result)
        op.erase()
    return True
