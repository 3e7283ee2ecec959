"""Bits of dropout that the lanes of the consumers make for their own warp, which then makes packed weights 0.

They are made once the weights are packed: then the registers of the scores are free for four calls of Philox beside each other. A lane
makes the bits of one row and 64 keys; they are handed around through shared memory, of which each warp has a part. See `attn_dropout.cuh`.
"""

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper import dropout_ahead
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator
from attn_mlir.backends.nvidia.hopper.steps import KvStep

_SHARE = 128
"""Keys whose bits the lanes of a warp make at a time."""


def possible(steps: list[KvStep] | None, keys: int) -> bool:
    """Whether weights are dropped when they are packed, in blocks of so many keys that no lane is idle."""
    return keys % _SHARE == 0 and dropout_ahead.possible(steps)


class LaneBits:
    """Prints what the consumers do about them; the producer does nothing."""

    def __init__(self, core: Core, layout: SharedAllocator, step: KvStep, size: tuple[int, int], columns: int) -> None:
        """`size`: rows of the kernel's block and keys of a step; `columns` of the queries."""
        self.core, self.step, self.unroll = core, step, 1 if columns > thresholds.ROLLED_DROPOUT else 7
        self.rows, self.keys = size
        self.kept = dropout_ahead.kept_ops(step)[0]
        layout.slot("kBits", self.keys // 64 * self.rows * 16)

    def drop(self, packed: str) -> None:
        """Makes the packed weights of the block at `kv` 0 that are dropped."""
        core, writer = self.core, self.core.writer
        with core.scope(""):
            first = dropout_ahead.print_places(core, self.step, self.kept)
            writer.line(f"attn::dropout_of_warp<{self.rows}, {self.keys}, {self.unroll}>(of, {first}, shared + kBits, query_of);")
        writer.line(f"attn::drop_own<{self.rows}>({packed}, shared + kBits);")
