"""Warps of the producer beside the one that loads: they make what belongs to a block of keys, ahead of the consumers.

The warp that loads tells where a block of keys is; so the other warps need not look at anything else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.core import Core

MAKERS = thresholds.DROPOUT_MAKERS


class Makers(ABC):
    """What is told about a block of keys, in a ring of `stages` messages: `kTold`, with the barriers `kToldFull` and `told_free`."""

    told_free = ""

    def __init__(self, core: Core, stages: int) -> None:
        self.core, self.stages = core, stages

    def at(self, name: str, size: int, iteration: str) -> str:
        """The address of the part of a ring that belongs to an iteration."""
        return f"shared + {name}" if self.stages == 1 else f"shared + {name} + {iteration} % {self.stages} * {size}"

    def parity(self, iteration: str) -> str:
        """Which phase of the barriers an iteration waits for."""
        return f"{iteration} & 1" if self.stages == 1 else f"{iteration} / {self.stages} & 1"

    # ---- the warp that loads

    def make(self, iteration: str) -> None:
        """Says where the block of keys of this iteration is: at `kv`, for this program (`block`, `head`, `batch`)."""
        self.tell(iteration, "kv, block, head, batch")

    def end(self, iteration: str) -> None:
        """Says that there are no more."""
        self.tell(iteration, "0, -1, 0, 0")

    def tell(self, iteration: str, message: str) -> None:
        """Leaves a message, once the one before that lay in its place is not needed any more."""
        writer = self.core.writer
        if self.stages & (self.stages - 1):  # its rests are computed again, so that they need no registers in between
            iteration = f"(uint32_t)attn::opaque({iteration})"
        writer.line(f"attn::barrier_wait({self.at(self.told_free, 8, iteration)}, ({self.parity(iteration)}) ^ 1);")
        with writer.block("if (lane == 0)"):
            writer.line(f"attn::store_shared_int4({self.at('kTold', 16, iteration)}, {message});")
            writer.line(f"attn::barrier_arrive({self.at('kToldFull', 8, iteration)});")  # after the message, which it publishes
        writer.line("__syncwarp();")  # lanes stay together: what follows is for all of them

    # ---- the warps that make it

    def workers(self, first_warp: int, before: Callable[[], None] | None) -> None:
        """Their loop; `before` prints what places are made of. Warp `first_warp` of the kernel is the first of them."""
        core, writer = self.core, self.core.writer
        if before is not None:
            before()
        self.prepare()
        with core.scope("for (uint32_t iteration = 0;; ++iteration)"):
            # The producer has left a message.
            writer.line(f"attn::barrier_wait({self.at('kToldFull', 8, 'iteration')}, {self.parity('iteration')});")
            writer.line(f"const int4 message = attn::load_shared_int4({self.at('kTold', 16, 'iteration')});")
            writer.line("const int kv = attn::uniform(message.x), block = attn::uniform(message.y);")
            writer.line("const int head = attn::uniform(message.z), batch = attn::uniform(message.w);", "if (block < 0) break;")
            self.block(f"attn::warp_index() - {first_warp}")
        core.seeds = {}

    def prepare(self) -> None:
        """Prints what stands before the loop."""
        return

    @abstractmethod
    def block(self, worker: str) -> None:
        """Prints one share of the work on the block of `iteration`."""
