"""Shared memory of a scan: what lies there from when to when, where it is put, and where barriers must stand."""

from dataclasses import dataclass, field

from attn_mlir.backends.amd.chunks.tiles import round_up
from attn_mlir.backends.gpu.writer import CodeWriter


@dataclass(eq=False)
class LdsBuffer:
    """Bytes in shared memory, under the C++ name of the constant that tells where; in use from epoch `first` to epoch `last`."""

    name: str
    bytes: int
    first: int
    last: int
    own: bool = False
    """Whether each wave has a part of its own, which no other wave reads."""

    @property
    def at(self) -> str:
        """C++: its address."""
        return f"memory + {self.name}"


@dataclass
class _Since:
    """What has happened since the last barrier."""

    written: set[LdsBuffer] = field(default_factory=set)
    read: set[LdsBuffer] = field(default_factory=set)
    wave: set[LdsBuffer] = field(default_factory=set)


@dataclass(frozen=True)
class _Loop:
    """Where a loop begins: its first line, and what there was before."""

    epoch: int
    since: _Since
    line: int
    buffers: int


class LdsMemory:
    """Prints barriers where an access needs one. Epochs are counted by barriers: what has no epoch in common may share memory."""

    def __init__(self, writer: CodeWriter, reuse: int) -> None:
        """`reuse`: a barrier is put before a buffer is written where another one was read, so that both may share memory.

        1: not before one of which each wave has a part of its own; 2: before all.
        """
        self._writer, self._reuse = writer, reuse
        self._epoch = 0
        self._since = _Since()
        self.buffers: list[LdsBuffer] = []

    def buffer(self, name: str, size: int, own: bool = False) -> LdsBuffer:
        """A new one."""
        if self._since.read and self._reuse > own:
            self.barrier()  # what the new one may share memory with has been read by all waves
        made = LdsBuffer(name, round_up(size, 16), self._epoch, self._epoch, own)
        self.buffers.append(made)
        return made

    def write(self, buffer: LdsBuffer) -> None:
        """Announces that the next statements write a new buffer."""
        buffer.last = self._epoch
        (self._since.wave if buffer.own else self._since.written).add(buffer)

    def read(self, buffer: LdsBuffer) -> None:
        """Announces that the next statements read a buffer. Several are announced twice: a barrier for one may follow another."""
        if buffer in self._since.written:
            self.barrier()  # other waves wrote a part of it
        elif buffer in self._since.wave:
            self._writer.line("attn::wave_barrier();")  # only lanes of this wave wrote it: no thread of another one waits
            self._since.wave.clear()
        buffer.last = self._epoch
        if not buffer.own:
            self._since.read.add(buffer)

    def barrier(self) -> None:
        """All threads of the block wait for each other."""
        self._writer.line("attn::barrier();")  # where another wave reads what this one wrote, or writes what it read: see `_Since`
        self._epoch += 1
        self._since = _Since()

    def enter(self) -> "_Loop":
        """Begins a loop, whose body starts with a barrier; gives what `leave` needs."""
        outer = _Loop(self._epoch, self._since, len(self._writer.lines), len(self.buffers))
        self._since = _Since()
        self.barrier()  # the iteration before, and what precedes the loop, is over
        return outer

    def leave(self, outer: "_Loop") -> None:
        """Ends a loop, which may have run any number of times. One that only reads what was there before needs no barrier."""
        if self._epoch == outer.epoch + 1 and len(self.buffers) == outer.buffers and not outer.since.written & self._since.read:
            del self._writer.lines[outer.line]
            self._epoch = outer.epoch
        for buffer in self.buffers:
            if buffer.first <= outer.epoch < buffer.last:
                buffer.last = self._epoch
        self.join(outer.since)

    def branch(self) -> "_Since":
        """Begins a branch that may be taken or not; gives what `join` needs."""
        before = self._since
        self._since = _Since(set(before.written), set(before.read), set(before.wave))
        return before

    def join(self, before: "_Since") -> None:
        """Ends it: what had happened before may still count."""
        now = self._since
        self._since = _Since(now.written | before.written, now.read | before.read, now.wave | before.wave)

    def place(self) -> tuple[dict[str, int], int]:
        """The byte at which each buffer begins, and how many there are."""
        placed: list[tuple[LdsBuffer, int]] = []
        for buffer in sorted(self.buffers, key=lambda b: (-b.bytes, b.first)):
            others = sorted((at, at + b.bytes) for b, at in placed if b.first <= buffer.last and buffer.first <= b.last)
            start = 0
            for begin, end in others:
                if start + buffer.bytes <= begin:
                    break
                start = max(start, end)
            placed.append((buffer, start))
        starts = {buffer.name: start for buffer, start in placed}
        return {b.name: starts[b.name] for b in self.buffers}, max((at + b.bytes for b, at in placed), default=0)
