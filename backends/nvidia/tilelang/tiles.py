"""Where the tiles of a kernel live in a TileLang program: in shared memory, or in fragments, which threads hold in registers."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from attn_mlir.backends.nvidia.tilelang.names import TilelangNames
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1, "int8": 1, "int16": 2}
_STEP = 16
"""What rows and columns of tiles are padded to: matrix instructions take 16 at a time."""


def padded(size: int, step: int = _STEP) -> int:
    """The least multiple of `step` that holds `size`."""
    return -(-size // step) * step


def bound(value: ir.Value) -> int | None:
    """What an index never exceeds, as far as constants and minima tell."""
    if isinstance(value.owner, ir.Block):
        return None
    op = value.owner.operation
    if op.name == "arith.constant":
        return ir.IntegerAttr(op.attributes["value"]).value
    if op.name == "arith.minsi":
        limits = [limit for limit in map(bound, op.operands) if limit is not None]
        return min(limits, default=None)
    return None


def exact(value: ir.Value) -> bool:
    """Whether an index is a constant."""
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name == "arith.constant"


@dataclass(frozen=True)
class TileBuffer:
    """A buffer of a program, or one number.

    `scope` is "shared" or "fragment", or "number" where all elements are the variable `name`; `stage` selects one of several copies.
    """

    name: str
    scope: str
    shape: tuple[int, ...]
    dtype: str
    stage: str = ""

    def at(self, *indices: str) -> str:
        """One element."""
        if self.scope == "number":
            return self.name
        return f"{self.name}[{', '.join([*([self.stage] if self.stage else []), *indices])}]"

    def whole(self) -> str:
        """All of it, as an operand of a tile operation."""
        return f"{self.name}[{self.stage}, :, :]" if self.stage else self.name


@dataclass(frozen=True)
class InMemory(TileBuffer):
    """A tile that is read where it is: `element` is the text of the element at {0}, {1}."""

    element: str = ""

    def at(self, *indices: str) -> str:
        return self.element.format(*indices)


_Key = tuple[str, str, tuple[int, ...], str]


class Tiles:
    """Allocates tiles; a tile that a finished block held serves its siblings again, under the same name and shape."""

    def __init__(self, names: TilelangNames) -> None:
        self._names = names
        self.lines: list[str] = []
        self._open: list[list[tuple[_Key, TileBuffer]]] = [[]]
        self._free: dict[_Key, list[TileBuffer]] = {}
        self._released: set[str] = set()
        self.still_read = False
        """Whether a tile was handed out that was released: threads may still read what it held before."""
        self.shared: dict[str, int] = {}
        """Bytes of shared memory of each tile."""

    def new(self, wanted: str, scope: str, shape: Sequence[int], dtype: str) -> TileBuffer:
        """A tile for the block that is open."""
        key = (wanted, scope, tuple(shape), dtype)
        if self._free.get(key):
            return self._take(key)
        if scope == "shared" and self._free.get((wanted, scope, (2, *shape), dtype)):
            copies = self._take((wanted, scope, (2, *shape), dtype))
            return replace(copies, shape=tuple(shape), stage="0")
        if dtype not in _BYTES:
            raise UnsupportedError(f"tilelang: no tiles of {dtype}; use f16, bf16 or f32 inputs")
        tile = TileBuffer(self._names.new(wanted), scope, tuple(shape), dtype)
        sizes = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        self.lines.append(f'{tile.name} = T.alloc_{scope}(({sizes}), "{dtype}")')
        self._open[-1].append((key, tile))
        if scope == "shared":
            self.shared[tile.name] = math.prod(shape) * _BYTES[dtype]
        return tile

    @property
    def shared_bytes(self) -> int:
        """Shared memory of all tiles."""
        return sum(self.shared.values())

    def _take(self, key: _Key) -> TileBuffer:
        tile = self._free[key].pop(0)
        self._open[-1].append((key, tile))
        self.still_read |= tile.name in self._released
        self._released.discard(tile.name)
        return tile

    def enter(self) -> None:
        """Opens a block."""
        self._open.append([])

    def leave(self) -> None:
        """Closes it: nothing reads its tiles any more."""
        for key, tile in self._open.pop():
            self._free.setdefault(key, []).append(tile)

    def release(self, tile: TileBuffer) -> None:
        """Gives back a tile of the block that is open, which nothing reads any more."""
        for entry in self._open[-1]:
            if entry[1] == tile:
                self._open[-1].remove(entry)
                self._free.setdefault(entry[0], []).append(tile)
                self._released.add(tile.name)
                return


def most_at_once(sizes: Mapping[str, int], lines: Sequence[str]) -> int:
    """The most bytes that tiles of these sizes need at one time, each from the first to the last line that names it.

    A tile that is named in a loop and before it is needed in all of the loop.
    """
    at: dict[str, list[int]] = {name: [] for name in sizes}
    for number, line in enumerate(lines):
        for name in dict.fromkeys(re.findall(r"\w+", line)):
            if name in at:
                at[name].append(number)
    depths = [len(line) - len(line.lstrip()) for line in lines]
    changes = [0] * (len(lines) + 1)
    for name, found in at.items():
        if found:
            first, last = found[0], _end(lines, depths, found[0], found[-1])
            changes[first] += sizes[name]
            changes[last + 1] -= sizes[name]
    return max(itertools.accumulate(changes))


def _end(lines: Sequence[str], depths: Sequence[int], first: int, last: int) -> int:
    """The last line of the outermost loop that holds line `last` but not line `first`; `last` where there is none."""
    end = last
    for begin in range(first + 1, last + 1):
        if "T.serial(" in lines[begin] and depths[begin] < depths[last]:
            after = next((n for n in range(begin + 1, len(lines)) if depths[n] <= depths[begin]), len(lines))
            if after > last:
                return max(end, after - 1)
    return end
