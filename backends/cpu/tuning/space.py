"""The schedules that are worth considering for a kernel on the CPU: sizes of blocks or chunks, and how many threads."""

import itertools
from dataclasses import dataclass

from attn_mlir.backends.cpu.target import CpuTarget
from attn_mlir.backends.cpu.tuning.model import cost
from attn_mlir.backends.fields import Fields
from attn_mlir.backends.tuning.facts import KernelFacts
from attn_mlir.backends.tuning.space import Cost, Workload

_KEYS = (16, 32, 64, 128, 256, 512)
_CHUNKS = (8, 16, 32, 64, 128)
_COLUMNS = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class CpuSpace:
    """The schedules of one kernel on a CPU that works with `threads` threads; see `tuning.space.Space`.

    `blocks`: sizes without tuning. `rows`: how many rows a block must have; 0: there is a choice. The target need not be there.
    """

    facts: KernelFacts
    target: CpuTarget
    work: Workload
    threads: int
    blocks: tuple[int, int]
    rows: int = 0

    @property
    def clock_ghz(self) -> float:
        return self.target.clock_ghz

    def candidates(self) -> list[Fields]:
        if self.facts.scan is not None:
            columns = sorted({*_COLUMNS, self.facts.scan.values})
            return [{"block_q": chunk, "block_kv": size} for chunk, size in itertools.product(_CHUNKS, columns)]
        if self.facts.grid not in ("rows", "pairs"):
            return []
        lanes = self.target.vector_bytes // (8 if self.facts.element == "f64" else 4)
        rows = (self.rows,) if self.rows else tuple(lanes << power for power in range(5))
        return [{"block_q": size, "block_kv": keys} for size, keys in itertools.product(rows, _KEYS)]

    def cost(self, choices: Fields) -> Cost:
        if self.rows and choices.get("block_q", self.rows) != self.rows:
            return Cost(0, 0, 1, 0.0, f"rows: {choices['block_q']}, but there are {self.rows}")
        return cost(self.facts, choices, self.target, self.work, self.threads)

    def untuned(self) -> Fields:
        return {"block_q": self.blocks[0], "block_kv": self.blocks[1]}

    def whole(self, choices: Fields) -> Fields:
        return {**self.untuned(), **choices}

    def refined(self, choices: Fields) -> list[Fields]:
        fewer = [1 << power for power in range(self.threads.bit_length()) if 1 << power < self.threads]
        return [{**choices, "threads": count} for count in fewer]
