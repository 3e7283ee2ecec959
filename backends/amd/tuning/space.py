"""The schedules that are worth considering for a kernel on an AMD GPU: keys of a block, positions of a chunk, columns of a program."""

import itertools
from dataclasses import dataclass

from attn_mlir.backends.amd.blocks import ROWS
from attn_mlir.backends.amd.target import AmdTarget
from attn_mlir.backends.amd.tuning.model import STEP, AmdScanFacts, cost
from attn_mlir.backends.fields import Fields
from attn_mlir.backends.tuning.facts import KernelFacts
from attn_mlir.backends.tuning.scan_facts import fields_of
from attn_mlir.backends.tuning.space import Cost, Workload
from attn_mlir.mlir import ir


@dataclass(frozen=True)
class AmdSpace:
    """The schedules of one kernel on an AMD GPU; see `tuning.space.Space`. `blocks`: sizes without tuning."""

    facts: KernelFacts
    target: AmdTarget
    work: Workload
    blocks: tuple[int, int]

    @property
    def clock_ghz(self) -> float:
        return self.target.clock_ghz

    def candidates(self) -> list[Fields]:
        if self.facts.scan is not None:
            return [{"block_q": chunk, "block_kv": size} for chunk, size in itertools.product((16, 32, 64), (16, 32, 64, 128))]
        if self.facts.grid not in ("rows", "pairs"):
            return []
        return [{"block_q": ROWS, "block_kv": keys} for keys in (STEP, 64, 96, 128, 160, 192, 256)]

    def cost(self, choices: Fields) -> Cost:
        return cost(self.facts, choices, self.target, self.work)

    def untuned(self) -> Fields:
        return {"block_q": self.blocks[0], "block_kv": self.blocks[1]}

    def whole(self, choices: Fields) -> Fields:
        return {**self.untuned(), **choices}

    def refined(self, choices: Fields) -> list[Fields]:
        return []


def chunk_scan_facts(op: ir.Operation) -> AmdScanFacts:
    """The facts of an `attn.chunk`."""
    wide = isinstance(ir.RankedTensorType(op.operands[1].type).element_type, ir.F32Type)
    return AmdScanFacts(*fields_of(op), wide)
