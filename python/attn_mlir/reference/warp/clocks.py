"""Who has seen what: vector clocks of warps, barriers that pass them on, and accesses to memory that must be ordered by them.

Every warp has a clock, and what asynchronous copies and products see has another one, which `warp.fence_async` brings up to date. So two
accesses without an order between them are found in every schedule, not only in one in which they happen to meet.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from attn_mlir.mlir import ir
from attn_mlir.reference.warp.faults import Fault, line_of

ISSUED = "issued"
"""Marks epochs that who had issued a copy knew of: who knows that this is over knows how far warps were, and of nothing that they wrote."""


def _is_issued(key: Hashable) -> bool:
    return isinstance(key, tuple) and key[0] == ISSUED


@dataclass(slots=True)
class Clock:
    """What is known to be over: epochs of each warp up to one, and single copies, of which there are many more."""

    warps: dict[Hashable, int] = field(default_factory=dict)
    copies: set[Hashable] = field(default_factory=set)

    def join(self, other: "Clock") -> None:
        """What `other` has seen, this one has seen then, too."""
        warps = self.warps
        for key, epoch in other.warps.items():
            if warps.get(key, -1) < epoch:
                warps[key] = epoch
        self.copies |= other.copies

    def knows(self, access: "Access") -> bool:
        """Whether an access that is over was seen."""
        return access.key in self.copies or self.warps.get(access.key, -1) >= (access.epoch or 0)

    def copy(self) -> "Clock":
        """One of its own for someone else."""
        return Clock(self.warps.copy(), self.copies.copy())


@dataclass(slots=True)
class Clocks:
    """What has happened before: as ordinary accesses see it (`seen`), and as asynchronous ones do (`fenced`)."""

    seen: Clock = field(default_factory=Clock)
    fenced: Clock = field(default_factory=Clock)

    def join(self, other: "Clocks") -> None:
        """Learns what another has seen."""
        self.seen.join(other.seen)
        self.fenced.join(other.fenced)

    @classmethod
    def issued(cls, warp: "WarpClock") -> "Clocks":
        """How far warps were when one issued a copy."""
        told, epochs = Clock(), warp.clocks.seen.warps | {warp.key: warp.epoch}
        told.join(Clock({key: epoch for key, epoch in epochs.items() if _is_issued(key)}))
        told.join(Clock({(ISSUED, key): epoch for key, epoch in epochs.items() if not _is_issued(key)}))
        return cls(told)

    @classmethod
    def after(cls, copy: Hashable) -> "Clocks":
        """When a copy is over."""
        return cls(Clock(copies={copy}), Clock(copies={copy}))


@dataclass
class WarpClock:
    """A warp: `number` in its warpgroup. An `epoch` lasts from one release to the next."""

    key: Hashable
    number: int
    epoch: int = 0
    clocks: Clocks = field(default_factory=Clocks)
    landed: set[Hashable] = field(default_factory=set)
    """Copies that each lane knows of its own only, until the lanes meet."""

    def release(self, met: bool = True) -> Clocks:
        """What others may learn from this warp; whether its lanes have `met`, so that each knows what all have copied."""
        if met:
            self.clocks.seen.copies |= self.landed
            self.landed.clear()
        self.clocks.seen.warps[self.key] = self.epoch
        self.epoch += 1
        return Clocks(self.clocks.seen.copy(), self.clocks.fenced.copy())


@dataclass(slots=True, eq=False)
class Access:
    """An access to memory by a warp or a copy; `ordinary` ones need a fence before asynchronous ones. Without an epoch it is not over."""

    key: Hashable
    location: ir.Location
    ordinary: bool = False
    epoch: int | None = None


@dataclass
class Barrier:
    """The barrier of a stage, which counts arrivals and bytes, or a named barrier, which counts threads."""

    arrivals: int
    missing: int
    phase: int = 0
    bytes: int = 0
    gathered: Clocks = field(default_factory=Clocks)
    last: Clocks = field(default_factory=Clocks)
    awaited: bool = False
    """Of a named barrier: whether someone waits for the phase at hand."""
    waits: list[tuple[Hashable, int, ir.Location]] = field(default_factory=list)
    """Warps that have waited for the last phase, the epochs in which they did, and where."""

    def arrive(self, clocks: Clocks, count: int = 1, bytes_: int = 0) -> None:
        """So many arrivals, and bytes that are announced, or have come (negative)."""
        self.missing, self.bytes = self.missing - count, self.bytes + bytes_
        self.gathered.join(clocks)
        if self.missing == 0 and self.bytes == 0:
            self._check_waits()
            self.phase, self.missing, self.last, self.gathered = self.phase + 1, self.arrivals, self.gathered, Clocks()

    def _check_waits(self) -> None:
        """A phase is over: raises Fault where a warp may still wait for the one before, as it sees a parity alone."""
        for key, epoch, location in self.waits:
            known = self.gathered.seen.warps
            if max(known.get(key, -1), known.get((ISSUED, key), -1)) < epoch:
                late = f"a warp that is late here may find phase {self.phase} over, which has the other parity"
                raise Fault("missed phase", location, f"{late}: nobody waits for that warp")
        self.waits.clear()

    def __str__(self) -> str:
        return f"phase {self.phase}, {self.missing} of {self.arrivals} arrivals and {self.bytes} bytes missing"


@dataclass(slots=True)
class Cell:
    """The accesses to a part of memory since it was last written."""

    wrote: Access | None = None
    reads: list[Access] = field(default_factory=list)
    added: list[Access] = field(default_factory=list)


class Accesses:
    """All accesses to shared and global memory, by parts of it."""

    def __init__(self) -> None:
        self._cells: dict[Hashable, Cell] = {}

    def read(self, cells: Iterable[Hashable], warp: WarpClock, access: Access, full: bool = True) -> None:
        """Raises Fault where what is read is not there yet; `full`: something must have been written."""
        known: Access | None = None  # rows that lie together were mostly written at once, so that one of them tells of all
        for key in cells:
            cell = self._cells.get(key)
            if cell is None:
                cell = self._cells[key] = Cell()
            if cell.wrote is None and full:
                raise Fault("read before full", access.location, "reads shared memory that nothing has written")
            if cell.wrote is not known:
                self._behind("read before full", "writes", cell.wrote, warp, access)
                known = cell.wrote
            for other in cell.added:
                self._behind("read before full", "adds", other, warp, access)
            if cell.reads:
                cell.reads = [r for r in cell.reads if r.epoch is None or r.key != access.key]
            cell.reads.append(access)

    def write(self, cells: Iterable[Hashable], warp: WarpClock, access: Access) -> None:
        """Raises Fault where something else may still read or write."""
        known, over = None, set[Access]()  # as in `read`: what read a row mostly read its neighbours, too
        for key in cells:
            cell = self._cells.get(key)
            if cell is None:
                self._cells[key] = Cell(access)
                continue
            if cell.wrote is not known:
                self._behind("overwritten twice", "writes", cell.wrote, warp, access)
                known = cell.wrote
            for does, others in (("reads", cell.reads), ("adds", cell.added)):
                for other in others:
                    if other not in over:
                        self._behind("overwritten while read", does, other, warp, access, fence=False)
                        over.add(other)
            cell.wrote, cell.reads, cell.added = access, [], []

    def add(self, cells: Iterable[Hashable], warp: WarpClock, access: Access, ordered: bool) -> None:
        """Additions may meet each other, unless they are `ordered`, but no reads or writes."""
        for key in cells:
            cell = self._cells.setdefault(key, Cell())
            self._behind("added before written", "writes", cell.wrote, warp, access)
            for other in cell.reads:
                self._behind("overwritten while read", "reads", other, warp, access, fence=False)
            for other in cell.added if ordered else ():
                self._behind("unordered additions", "adds", other, warp, access, fence=False)
            cell.added.append(access)

    def _behind(self, kind: str, does: str, other: Access | None, warp: WarpClock, access: Access, fence: bool = True) -> None:
        if other is None:
            return
        clocks = warp.clocks
        done = other.epoch is not None and (other.key == warp.key or clocks.seen.knows(other))
        if not done:
            raise Fault(kind, access.location, f"is not ordered behind what {line_of(other.location)} {does}")
        if fence and other.ordinary and not access.ordinary and not clocks.fenced.knows(other):
            message = f"what {line_of(other.location)} {does} needs 'warp.fence_async' before an asynchronous access"
            raise Fault("missing fence", access.location, message)


Condition = Callable[[], bool]
