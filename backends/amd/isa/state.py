"""What an instruction changes: registers of a wave, the memory of its block, and global memory."""

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from attn_mlir.errors import AttnError

LANES = 64
FULL = (1 << LANES) - 1
VCC, M0 = 106, 124
SCRATCH_MARK = 0x5C00
"""Of the address of a buffer that stands for a lane's scratch memory."""
Words = NDArray[np.uint32]
Mask = NDArray[np.bool_]


class InterpreterError(AttnError, RuntimeError):
    """A compiled kernel does what a GPU must not, or what the interpreter does not know; the message tells which instruction, and where."""


@dataclass
class GlobalTensor:
    """A tensor in memory, byte by byte."""

    begin: int
    data: NDArray[np.uint8]
    writable: bool
    name: str


class GlobalMemory:
    """Tensors at their addresses; an access that is not wholly inside of one is an error."""

    def __init__(self) -> None:
        self.regions: list[GlobalTensor] = []

    def find(self, addresses: NDArray[np.int64], size: int, write: bool) -> GlobalTensor:
        """The tensor that holds `size` bytes at every address. Raises InterpreterError where none does, or it is only read."""
        low, high = int(addresses.min()), int(addresses.max()) + size
        for region in self.regions:
            if region.begin <= low and high <= region.begin + len(region.data):
                if write and not region.writable:
                    raise InterpreterError(f"writes {region.name}, which is only read")
                return region
        # One instruction may reach several tensors, lane by lane.
        for address in addresses:
            inside = (r for r in self.regions if r.begin <= address and address + size <= r.begin + len(r.data))
            if next(inside, None) is None:
                near = min(self.regions, key=lambda r: abs(r.begin + len(r.data) // 2 - address), default=None)
                where = f"byte {address - near.begin} of {near.name}, which has {len(near.data)}" if near else "where there is no tensor"
                raise InterpreterError(f"{'writes' if write else 'reads'} {size} bytes out of bounds, at {where}")
        raise InterpreterError("one access reaches several tensors")

    def load(self, addresses: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """[addresses, size] bytes."""
        region = self.find(addresses, size, False)
        return region.data[(addresses - region.begin)[:, None] + np.arange(size)]

    def store(self, addresses: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        """The inverse."""
        region = self.find(addresses, data.shape[1], True)
        region.data[(addresses - region.begin)[:, None] + np.arange(data.shape[1])] = data

    def add(self, addresses: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Atomic additions of f32."""
        region = self.find(addresses, 4, True)
        np.add.at(region.data[: len(region.data) // 4 * 4].view(np.float32), (addresses - region.begin) >> 2, values)


@dataclass
class ThreadBlock:
    """A thread block: its shared memory (NaN at the start), and which wave touched which word since which barrier."""

    index: tuple[int, int, int]
    shared_bytes: int
    memory: GlobalMemory
    conflicts: Counter[tuple[str, float]] | None = None
    epoch: int = 0
    shared: NDArray[np.uint8] = field(default_factory=lambda: np.full(65536, 0xFF, np.uint8))
    written: NDArray[np.int64] = field(default_factory=lambda: np.full((2, 16384), -1, np.int64))
    read: NDArray[np.int64] = field(default_factory=lambda: np.full((2, 16384), -1, np.int64))

    def touch(self, wave: int, addresses: NDArray[np.int64], size: int, write: bool) -> None:
        """Notes an access of a wave. Raises InterpreterError for bounds, and for one that races with another wave's."""
        if addresses.min() < 0 or addresses.max() + size > self.shared_bytes:
            raise InterpreterError(f"shared memory out of bounds: byte {int(addresses.max()) + size} of {self.shared_bytes}")
        words = ((addresses[:, None] + np.arange(0, max(size, 4), 4)) >> 2).ravel()
        others = (self.written[0, words] == self.epoch) & (self.written[1, words] != wave)
        verb = "written"
        if write and not others.any():
            others = (self.read[0, words] == self.epoch) & (self.read[1, words] != wave)
            verb = "read"
        if others.any():
            word = int(words[others][0])
            other = int((self.written if verb == "written" else self.read)[1, word])
            who = f"wave {other}" if other >= 0 else "several waves"
            raise InterpreterError(f"race: shared memory's word {word} is {verb} by {who} since the last barrier")
        if write:
            self.written[0, words], self.written[1, words] = self.epoch, wave
        else:
            several = (self.read[0, words] == self.epoch) & (self.read[1, words] != wave)
            self.read[0, words], self.read[1, words] = self.epoch, np.where(several, -2, wave)


class Wave:
    """64 lanes: vector registers (accumulation registers are numbers 256 to 511), scalar registers, the mask of active lanes."""

    def __init__(self, group: ThreadBlock, number: int, scratch: int) -> None:
        self.group, self.number = group, number
        self.v: Words = np.full((512, LANES), 0x7FC0DEAD, np.uint32)
        self.s: list[int] = [0xDEADBEEF] * 128
        self.exec, self.mask, self.full = FULL, np.ones(LANES, bool), True
        self.scc, self.pc, self.done = 0, 0, False
        self.scratch = np.full((LANES, scratch + 16), 0xCD, np.uint8)

    def set_exec(self, bits: int) -> None:
        """Which lanes are active."""
        self.exec, self.full, self.mask = bits, bits == FULL, lanes_of(bits)

    def write(self, register: int, value: Words) -> None:
        """A vector register, in active lanes."""
        if self.full:
            self.v[register] = value
        else:
            np.copyto(self.v[register], value, where=self.mask)


def lanes_of(bits: int) -> Mask:
    """A mask of lanes as booleans."""
    return np.unpackbits(np.array([bits], np.uint64).view(np.uint8), bitorder="little").astype(bool)


def bits_of(mask: Mask) -> int:
    """The inverse."""
    return int(np.packbits(mask, bitorder="little").view(np.uint64)[0])


def shuffled(waves: list[Wave], generator: random.Random) -> list[Wave]:
    """The waves in another order."""
    return generator.sample(waves, len(waves))
