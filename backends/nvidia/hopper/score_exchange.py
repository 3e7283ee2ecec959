"""Scores of thread blocks that share the columns of rows in a cluster: each has those of its columns of q and k, and all add them up."""

from attn_mlir.backends.gpu.structure import body, operations
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator
from attn_mlir.backends.nvidia.hopper.stores import through_tma
from attn_mlir.backends.nvidia.hopper.tiles import RegTile
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

HEADER = "attn_cluster.cuh"
EXCHANGES = ("stores", "copies")
"""How scores get to other thread blocks: 16 bytes of a lane at a time (`st.async`), or by the bulk engine, 16 rows at a time."""
_WARP_ROWS = 16


class ScoreExchange:
    """Prints the exchange; each warp has the rows of the warps of the same number in the other thread blocks.

    With `copies` a warp lays its scores out in shared memory of its own, and one copy of the bulk engine takes them to each of the others.
    """

    def __init__(self, core: Core, layout: SharedAllocator, warps: int, *, copies: bool) -> None:
        self.core, self.warp_bytes, self.copies = core, _WARP_ROWS * core.width * 4, copies
        self.slot_bytes = warps * self.warp_bytes
        layout.tile("kScores", (core.cluster - 1 + copies) * self.slot_bytes)
        layout.barrier("kScoresFull", warps, 1)
        layout.barrier("kScoresFree", warps, core.cluster - 1)

    def declare(self) -> None:
        """What consumers count."""
        self.core.writer.line("uint32_t exchanges = 0;")

    def add(self, scores: RegTile) -> None:
        """Makes the scores of all columns of those of this thread block's."""
        self.send(scores)
        self.receive(scores)

    def send(self, scores: RegTile) -> None:
        """Sends this thread block's part of the scores to the others."""
        if scores.columns != self.core.width:
            raise UnsupportedError("hopper: thread blocks of a cluster add scores of whole blocks of keys")
        self._call("attn::copy_to_cluster" if self.copies else "attn::send_to_cluster", scores, "exchanges")

    def receive(self, scores: RegTile) -> None:
        """Adds what the others sent to the scores that were sent last."""
        self._call("attn::add_of_cluster", scores, "exchanges++")

    def _call(self, function: str, scores: RegTile, count: str) -> None:
        warp = "threadIdx.x / 32"
        places = f"shared + kScores + {warp} * {self.warp_bytes}, shared + kScoresFull + {warp} * 8, shared + kScoresFree + {warp} * 8"
        self.core.writer.line(f"{function}<{self.core.cluster}, {self.slot_bytes}>({scores.name}, {places}, {count});")


def check_shared(kernel: ir.Operation, known: set[ir.Operation]) -> None:
    """Raises UnsupportedError for kernels that thread blocks of a cluster cannot share by columns.

    Their products are those `known` of overlapped loops, of tiles as they were loaded, and outputs with columns leave by TMA.
    """
    if not known or any(op not in known for op in find_all(kernel, *DOTS)):
        raise UnsupportedError("hopper: thread blocks share columns where each loop has one product of scores and one of sums")
    loads = {load.results[0] for load in find_all(kernel, "tile.load")}
    for op in find_all(kernel, "tile.map"):
        if loads.intersection(op.operands):
            raise UnsupportedError("hopper: thread blocks share columns of q, k and v as they are, without functions of these", op)
    for op in operations(body(kernel)):
        if op.name == "tile.store" and ir.RankedTensorType(op.operands[0].type).rank == 2 and not through_tma(op.operands[1].type):
            raise UnsupportedError("hopper: thread blocks share columns of 16-bit outputs that TMA stores", op)
