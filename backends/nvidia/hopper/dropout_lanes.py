"""Bits of dropout that the lanes of the consumers make for their own warp, which then makes packed weights 0.

They are made once the weights are packed: then the registers of the scores are free for four calls of Philox beside each other. A lane
makes the bits of one row and 64 keys; they are handed around through shared memory, of which each warp has a part. See `attn_dropout.cuh`.
"""

from attn_mlir.backends.gpu.structure import body, operations
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.dropout import dropped_when_packed, head_row, kept_in, keys_along_columns, keys_follow, seed_words
from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator
from attn_mlir.backends.nvidia.hopper.steps import KvStep
from attn_mlir.mlir import ir

HEADER = "attn_dropout.cuh"

_SHARE = 128
"""Keys whose bits the lanes of a warp make at a time."""


def possible(steps: list[KvStep] | None, keys: int) -> bool:
    """Whether weights are dropped when they are packed, in blocks of so many keys that no lane is idle."""
    return keys % _SHARE == 0 and _packed_alone(steps)


def _kept_ops(step: KvStep) -> list[ir.Operation]:
    """Every `attn.kept` of a step."""
    return [op for map_ in step.rest if map_.name == "tile.map" for op in operations(body(map_)) if op.name == "attn.kept"]


def _packed_alone(steps: list[KvStep] | None) -> bool:
    """Whether each step of a chain has one `attn.kept`, which only makes packed weights 0."""
    if not steps:
        return False
    found = [_kept_ops(step) for step in steps]
    alone = all(len(ops) == 1 and kept_in(ops[0].block) == ops[0] and dropped_when_packed(ops[0]) for ops in found)
    return alone and all(keys_along_columns(ops[0]) and keys_follow(ops[0]) for ops in found)


def _print_places(core: Core, step: KvStep, op: ir.Operation) -> str:
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


class LaneBits:
    """Prints what the consumers do about them; the producer does nothing."""

    def __init__(self, core: Core, layout: SharedAllocator, step: KvStep, size: tuple[int, int], columns: int) -> None:
        """`size`: rows of the kernel's block and keys of a step; `columns` of the queries."""
        self.core, self.step, self.unroll = core, step, 1 if columns > thresholds.ROLLED_DROPOUT else 7
        self.rows, self.keys = size
        self.kept = _kept_ops(step)[0]
        layout.slot("kBits", self.keys // 64 * self.rows * 16)

    def drop(self, packed: str) -> None:
        """Makes the packed weights of the block at `kv` 0 that are dropped."""
        core, writer = self.core, self.core.writer
        with core.scope(""):
            first = _print_places(core, self.step, self.kept)
            writer.line(f"attn::dropout_of_warp<{self.rows}, {self.keys}, {self.unroll}>(of, {first}, shared + kBits, query_of);")
        writer.line(f"attn::drop_own<{self.rows}>({packed}, shared + kBits);")
