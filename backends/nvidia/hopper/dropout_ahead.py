"""Bits of dropout that the producer's idle warps make, a block of keys ahead of the consumers, who only make packed weights 0.

The bits have a ring of stages beside that of the keys. The warp that loads tells where a block of keys is, once the consumers have read the
bits that its stage held before; so the other warps need not look at anything else. See `attn_dropout.cuh` for the bits.
"""

from attn_mlir.backends.gpu.structure import body, operations
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.dropout import (
    dropped_when_packed,
    head_row,
    kept_in,
    keys_along_columns,
    keys_follow,
    print_seeds,
    seed_words,
)
from attn_mlir.backends.nvidia.hopper.makers import MAKERS, Makers
from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator, of_warps
from attn_mlir.backends.nvidia.hopper.steps import KvStep
from attn_mlir.mlir import ir

HEADER = "attn_dropout.cuh"
_PART = 64
"""Keys of a row whose bits are stored together."""


def kept_ops(step: KvStep) -> list[ir.Operation]:
    """Every `attn.kept` of a step."""
    return [op for map_ in step.rest if map_.name == "tile.map" for op in operations(body(map_)) if op.name == "attn.kept"]


def possible(steps: list[KvStep] | None) -> bool:
    """Whether each step of a chain has one `attn.kept`, which only makes packed weights 0."""
    if not steps:
        return False
    found = [kept_ops(step) for step in steps]
    alone = all(len(ops) == 1 and kept_in(ops[0].block) == ops[0] and dropped_when_packed(ops[0]) for ops in found)
    return alone and all(keys_along_columns(ops[0]) and keys_follow(ops[0]) for ops in found)


def print_places(core: Core, step: KvStep, op: ir.Operation) -> str:
    """Prints `of`, what all bits of the block at `kv` 0 are made of, and `query_of`, the query of a row; its first key."""
    writer = core.writer
    seed, offset, drop, heads, b, h, query, key = op.operands
    core.scalars.bind(step.position, "kv")
    core.scalars.bind(op.block.arguments[1], "0")
    first = core.scalars.emit(key)
    numbers = (*seed_words(core, seed), seed_words(core, offset)[0], f"(unsigned)({core.scalars.emit(drop)})")
    writer.line(f"const attn::Dropout of = {{{', '.join(numbers)}, (unsigned)({head_row(core, b, heads, h)})}};")
    with writer.block("const auto query_of = [&](int row)"), core.scope(None):
        core.scalars.bind(op.block.arguments[0], "row")
        writer.line(f"return (unsigned)({core.scalars.emit(query)});")
    writer.lines[-1] += ";"
    return first


class AheadBits(Makers):
    """Prints what each role does about them."""

    told_free = "kBitsFree"

    def __init__(
        self, core: Core, layout: SharedAllocator, step: KvStep, size: tuple[int, int], stages: int, warps: int, makers: int
    ) -> None:
        """`size`: rows of the kernel's block and keys of a step; `warps` of consumers; `makers`: warps that share the work."""
        super().__init__(core, stages)
        self.step, self.makers = step, makers
        self.rows, self.keys = size
        self.kept = kept_ops(step)[0]
        parts = -(-self.keys // _PART)
        self.bytes, self.table = parts * self.rows * 16, parts * 4 * 16
        layout.barrier("kToldFull", stages, 1)
        layout.barrier("kBitsFull", stages, of_warps(self.makers))
        layout.barrier("kBitsFree", stages, of_warps(warps))
        layout.slot("kTold", 16 * stages)
        layout.slot("kTable", self.makers * self.table)
        layout.slot("kBits", stages * self.bytes)

    # ---- the warp that loads

    def make(self, iteration: str) -> None:
        """Says where this iteration's block of keys is: at `kv`, for this program (`block`, `head`, `batch`). Makes its share, if any."""
        super().make(iteration)
        if self.makers == MAKERS:
            return
        with self.core.scope(""):
            print_seeds(self.core, [self.kept], again=True)
            self._block(str(MAKERS), iteration, 1)
            self.core.seeds = {}

    # ---- the warps that make them

    def prepare(self) -> None:
        """Reads the numbers of dropout."""
        print_seeds(self.core, [self.kept])

    def block(self, worker: str) -> None:
        """Prints one share of the bits of `iteration`."""
        self._block(worker, "iteration", 2)

    def _block(self, worker: str, iteration: str, calls: int) -> None:
        """One share of the bits of an iteration."""
        writer, first = self.core.writer, print_places(self.core, self.step, self.kept)
        table = f"shared + kTable + ({worker}) * {self.table}"
        size = f"{self.rows}, {self.keys}, {self.makers}, {calls}, false"
        writer.line(f"attn::dropout_block<{size}>(of, {worker}, {first}, {self.at('kBits', self.bytes, iteration)}, {table}, query_of);")
        # One lane arrives for the warp, once all lanes have written their bits.
        writer.line("__syncwarp();", f"attn::warp_arrive({self.at('kBitsFull', 8, iteration)}, lane == 0);")

    # ---- the consumers

    def drop(self, packed: str, iteration: str) -> None:
        """Makes the packed weights of this iteration's block 0 that are dropped, and gives the bits back."""
        # The makers have written this block's bits.
        self.core.writer.line(f"attn::barrier_wait({self.at('kBitsFull', 8, iteration)}, {self.parity(iteration)});")
        places = f"{self.at('kBits', self.bytes, iteration)}, {self.at('kBitsFree', 8, iteration)}"
        self.core.writer.line(f"attn::drop<{self.rows}>({packed}, {places});")
