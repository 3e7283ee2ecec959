"""Loops in which two warpgroups that share rows lead in turn: while one makes weights of its scores, the other computes the next ones.

Of two blocks the first warpgroup leads one, the second the next; each follows in the other's. What a block changes of what the loop
carries goes with its weights from leader to follower, so that maxima are those of all keys before. Two stages of keys do: each is given
back after both products with its values.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import body, operations, partial_sums, yielded
from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator, TileRing
from attn_mlir.backends.nvidia.hopper.shared_halves import BOTH, FREE, FULL, KEYS, SUMS, Follower, Half, Leader, SharedForm
from attn_mlir.backends.nvidia.hopper.tiles import ROWS, RegRow, SharedTile, Tile
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import walk

_BACK, _OWN = 4, 5
"""Named barriers: the second warpgroup's weights are there; each warpgroup has read what it was given, before it writes."""
_PAIR = 2 * KEYS


@dataclass(frozen=True)
class AlternatingLoop:
    """A loop over whole blocks of keys: its ops by what they are for, and what it carries for each row."""

    op: ir.Operation
    keys: ir.Operation
    scores: tuple[ir.Operation, ...]
    """Up to the product that is the scores."""
    maps: tuple[ir.Operation, ...]
    """What makes weights of these."""
    sums: ir.Operation
    rows: tuple[tuple[ir.Value, ir.Value, bool, int], ...]
    """Values of rows: carried, yielded, whether threads hold parts of a sum, and where they are handed over."""

    @property
    def bytes(self) -> int:
        """Shared memory for these."""
        return sum(_row_bytes(partial) for _, _, partial, _ in self.rows)

    def before_rows(self) -> int:
        """How many of the maps come before the first that reads what is carried."""
        carried = [row for row, _, _, _ in self.rows]
        reads = [any(value in carried for inner in walk(op) for value in inner.operands) for op in self.maps]
        return reads.index(True) if True in reads else len(reads)


def read_loop(op: ir.Operation, form: SharedForm) -> AlternatingLoop | None:
    """The loop, if its blocks are whole and of the usual form."""
    inside = operations(body(op))[:-1]
    loads = [load for load in inside if load.name == "tile.load" and load not in form.keys_of]
    numbers = [n for n, each in enumerate(inside) if each.name == "tile.dot"], [n for n, each in enumerate(inside) if each.name in SUMS]
    if len(loads) != 1 or any(len(each) != 1 for each in numbers) or any(list(each.regions) for each in inside if each.name != "tile.map"):
        return None
    (dot,), (sums,) = numbers
    count = loads[0].operands[4].owner
    if isinstance(count, ir.Block) or count.operation.name != "arith.constant":
        return None
    rows, place = [], 0
    partial = partial_sums([op])
    for argument, value in zip(list(body(op).arguments)[1:], yielded(body(op)), strict=True):
        if value == inside[sums].results[0]:
            continue
        if not isinstance(argument.type, ir.RankedTensorType) or ir.RankedTensorType(argument.type).rank != 1:
            return None
        rows.append((argument, value, argument in partial, place))
        place += _row_bytes(argument in partial)
    maps = (*inside[dot + 1 : sums], *inside[sums + 1 :])
    return AlternatingLoop(op, loads[0], tuple(inside[: dot + 1]), maps, inside[sums], tuple(rows))


def _row_bytes(partial: bool) -> int:
    return 128 * 8 if partial else ROWS * 4


class Alternation:
    """Prints the first blocks of such loops, as many as are a multiple of two. See `shared_halves.Turns`."""

    def __init__(self, form: SharedForm, loops: Sequence[ir.Operation]) -> None:
        """Raises UnsupportedError where no loop is such."""
        found = [read_loop(op, form) for op in loops]
        self._loops = {loop.op: loop for loop in found if loop is not None}
        if not self._loops:
            raise UnsupportedError("hopper: no loop goes over whole blocks that two warpgroups may lead in turn")

    def allocate(self, layout: SharedAllocator) -> None:
        """Reserves what is handed over."""
        layout.slot("kCarried", max(loop.bytes for loop in self._loops.values()))

    def first(self, leader: Leader, op: ir.Operation, carried: Sequence[Tile], bounds: tuple[str, str]) -> str:
        """What the first warpgroup does; where the blocks that are left begin."""
        loop = self._loops.get(op)
        if loop is None:
            return bounds[0]
        core = leader.core
        end = self._end(leader, bounds)
        # The follower has read all that it was given before.
        core.writer.line(f"if ({bounds[0]} < {end}) attn::named_sync({FREE}, {BOTH});")
        with self._pairs(leader, loop, bounds[0], end) as ring:
            with core.scope(""):
                self._print(leader, loop.scores, [])
                self._print(leader, loop.maps, [])
                leader.land()
                leader.lead(loop.sums, f"attn::named_sync({_OWN}, 128);", FULL, lambda: self._hand_over(leader, loop))
                leader.land()
                leader.memory.free(ring)
            with core.scope(""), _later(ring):
                tile = leader.memory.wait(ring)
                target = leader.follow(loop.sums, tile, _BACK, lambda: self._take_over(leader, loop))
                leader.products.wait(0, target)
                leader.memory.free(ring)
        return end

    def second(self, follower: Follower, op: ir.Operation, bounds: tuple[str, str]) -> str:
        """What the second warpgroup does; where the blocks that are left begin."""
        loop, leader = self._loops.get(op), follower.leading
        if loop is None or leader is None:
            return bounds[0]
        core = follower.core
        end = self._end(follower, bounds)
        leader.maps.partial |= partial_sums([op])
        for argument, _, partial, _ in loop.rows:
            core.tiles[argument] = core.row("carried", partial=partial)
        with self._pairs(follower, loop, bounds[0], end) as ring:
            split = loop.before_rows()
            with _later(ring):
                self._print(leader, loop.scores, [])
                leader.land()
                self._print(leader, loop.maps[:split], [])
            tile = follower.memory.wait(ring)
            target = follower.follow(loop.sums, tile, FULL, lambda: self._take_over(follower, loop))
            self._print(leader, loop.maps[split:], [])
            follower.products.wait(0, target)
            follower.memory.free(ring)
            with _later(ring):
                leader.lead(loop.sums, f"attn::named_sync({_OWN + 1}, 128);", _BACK, lambda: self._hand_over(leader, loop))
                leader.land()
                follower.memory.free(ring)
        core.writer.line(f"if ({bounds[0]} < {end}) attn::named_arrive({FREE}, {BOTH});")
        return end

    def _end(self, half: Half, bounds: tuple[str, str]) -> str:
        """Declares where the last pair of blocks ends."""
        name = half.core.names.fresh("pairs_end")
        begin, end = bounds
        half.core.writer.line(f"const int {name} = {begin} + max({end} - {begin}, 0) / {_PAIR} * {_PAIR};")
        return name

    @contextmanager
    def _pairs(self, half: Half, loop: AlternatingLoop, begin: str, end: str) -> Iterator[TileRing]:
        """The loop over pairs of blocks; the ring of their keys."""
        core, ring = half.core, half.memory.ring(loop.keys, half.stages)
        known, index = dict(core.tiles), core.names.fresh("kv")
        with core.scope(f"for (int {index} = {begin}; {index} < {end}; {index} += {_PAIR})"):
            core.scalars.bind(next(iter(body(loop.op).arguments)), index if not half.second else f"({index} + {KEYS})")
            yield ring
            core.writer.line(f"{ring.iteration} += 2;")
        core.tiles.clear()
        core.tiles.update(known)

    def _print(self, half: Half, ops: Sequence[ir.Operation], rings: list[TileRing]) -> None:
        for op in ops:
            half.operation(op, rings)

    def _hand_over(self, leader: Leader, loop: AlternatingLoop) -> None:
        """Stores what a block makes of what is carried."""
        core, writer = leader.core, leader.core.writer
        for _, value, partial, place in loop.rows:
            row = core.tiles[value]
            if not isinstance(row, RegRow) or row.partial != partial:
                raise UnsupportedError("hopper: this loop carries other values of rows than it begins with", loop.op)
            with writer.block("" if partial else "if (column == 0)"), writer.unrolled("h", 2):
                writer.line(f"attn::store_shared({_place_of(partial, place)}, {row.name}[h]);")

    def _take_over(self, half: Half, loop: AlternatingLoop) -> None:
        """Reads it."""
        for argument, _, partial, place in loop.rows:
            row = half.core.tiles[argument]
            assert isinstance(row, RegRow)
            with half.core.writer.unrolled("h", 2):
                half.core.writer.line(f"{row.name}[h] = attn::load_shared({_place_of(partial, place)});")


def _place_of(partial: bool, place: int) -> str:
    """Where a value of a row is, of each thread where these hold parts: threads of both warpgroups have the same rows and columns."""
    return f"shared + kCarried + {place} + {'(h * 128 + threadIdx.x % 128) * 4' if partial else '(row + 8 * h) * 4'}"


@contextmanager
def _later(ring: TileRing) -> Iterator[None]:
    """Within it, the ring's stage is that of the next block."""
    own = ring.iteration
    ring.iteration = f"({own} + 1)"
    yield
    ring.iteration = own


__all__ = ["AlternatingLoop", "Alternation", "SharedTile", "read_loop"]
