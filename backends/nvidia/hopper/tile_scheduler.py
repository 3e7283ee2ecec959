"""Which programs a thread block runs: one, a fixed share of all, or whatever is left when it gets there."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator, of_warps
from attn_mlir.mlir import ir

_BLOCKS, _HEADS = 16, 16
"""Heads with fewer blocks of rows run in larger groups, as many as have the keys of so many heads with so many blocks."""


@dataclass
class TileScheduler:
    """The loop over programs of both roles, inside of which `block`, `head` and `batch` are known.

    `order`: "tiles", a grid of them; "static", thread block n of N runs the programs n, n + N...; "dynamic", each takes the next
    one from a counter. `group` heads run together (so that their keys stay in the second level cache), more of them where a head has few
    blocks; the last blocks first where `reverse`. `round` counts the programs that a thread block has run.
    """

    core: Core
    over: ir.Value
    order: str
    group: int
    reverse: bool
    warps: int

    few: bool = False
    """Whether a thread block makes its own item of a list of work (`few_rows`)."""
    shared_batches: bool = False
    """Whether batch entries of a head run together, which read the same windows of captured tensors."""

    round = "round"

    @property
    def _own(self) -> str:
        """The number of this thread block, or of its cluster, which runs a program together."""
        return "blockIdx.x" if self.core.cluster == 1 else f"(blockIdx.x / {self.core.cluster})"

    @property
    def _all(self) -> str:
        """How many of these there are."""
        return "gridDim.x" if self.core.cluster == 1 else f"(gridDim.x / {self.core.cluster})"

    @property
    def grid(self) -> str:
        """For `KernelCode.grid`."""
        return "tiles" if self.order == "tiles" else "persistent"

    def allocate(self, layout: SharedAllocator) -> None:
        """Reserves what the roles exchange."""
        if self.order == "dynamic":
            layout.barrier("kNextFull", 2, 1)
            layout.barrier("kNextFree", 2, of_warps(self.warps))
            layout.slot("kNext", 8)

    def declare(self) -> None:
        """What the loop needs, before the roles part."""
        core = self.core
        if self.few:
            return
        core.declare_items()
        if self.order == "tiles":
            if core.packed:
                core.writer.line(f"if ((int){self._own} >= items) return;")
            return
        heads, batches = core.arguments.size(self.over, 1), "1" if core.packed else core.arguments.size(self.over, 0)
        core.writer.line(f"const int pairs = {heads} * {batches}, programs = {core.blocks()} * pairs;")
        if core.packed:  # the grid is made for as many items as there may be, and roles take it that there is a program
            core.writer.line(f"if ((int){self._own} >= programs) return;")
        blocks = "max(1, items)" if core.packed else core.blocks()
        core.writer.line(f"const int group = max({self.group}, {_BLOCKS * min(self.group, _HEADS)} / {blocks});")

    @contextmanager
    def each(self, producer: bool) -> Iterator[None]:
        """The loop; `uint32_t round` counts."""
        core, writer = self.core, self.core.writer
        if self.order == "tiles":
            with core.scope(None):
                writer.line("constexpr uint32_t round = 0;")
                self.decode()
                yield
            return
        writer.line("uint32_t round = 0;")
        if self.order == "static":
            with core.scope(f"for (int program = {self._own}; program < programs; program += {self._all}, ++round)"):
                self.decode()
                yield
            return
        if producer:
            writer.line("int program = blockIdx.x;")
        with core.scope("for (;; ++round)"):
            self._exchange(producer)
            self.decode()
            yield
            if producer:
                self.follow()

    def _exchange(self, producer: bool) -> None:
        writer = self.core.writer
        slot = "shared + kNext + round % 2 * 4"
        if producer:
            # Every warp has read the number of two rounds before, whose slot this is.
            writer.line("attn::barrier_wait(shared + kNextFree + round % 2 * 8, (round / 2 & 1) ^ 1);")
            with writer.block("if (lane == 0)"):
                # The arrival publishes the number that is stored before it.
                writer.line(f"attn::store_shared_int({slot}, program);", "attn::barrier_arrive(shared + kNextFull + round % 2 * 8);")
            writer.line("if (program >= programs) break;")
            self.draw()
            return
        writer.line("attn::barrier_wait(shared + kNextFull + round % 2 * 8, round / 2 & 1);")  # the producer has drawn the next program
        writer.line(f"const int program = attn::uniform(attn::load_shared_int({slot}));")
        # `uniform` met all lanes: each has read the number.
        writer.line("attn::warp_arrive(shared + kNextFree + round % 2 * 8, lane == 0);", "if (program >= programs) break;")

    def draw(self) -> None:
        """Asks for the next program; the answer is needed after this one's loads."""
        if self.order == "dynamic":
            self.core.writer.line(f"const int drawn = lane == 0 ? atomicAdd({self.core.arguments.counter()}, 1) : 0;")

    def follow(self) -> None:
        """Goes on to the next program. The last one to ask leaves the counter at zero."""
        writer = self.core.writer
        if self.order == "static":
            writer.line("program += gridDim.x;")
        elif self.order == "tiles":
            writer.line("program = programs;")
        elif self.order == "dynamic":
            writer.line("if (lane == 0 && drawn == programs - 1) *counter = 0;")
            writer.line("program = gridDim.x + __shfl_sync(0xffffffffu, drawn, 0);")

    def decode(self) -> None:
        """Which block, head and batch the program is."""
        writer = self.core.writer
        reverse = self.reverse and not self.core.packed  # lists have the longest programs first
        if self.few:
            writer.line("const int block = 0, head = blockIdx.y, batch = 0;")
            return
        if self.order == "tiles":
            block = f"{self._all} - 1 - {self._own}" if reverse else self._own
            writer.line(f"const int block = {block}, head = blockIdx.y, batch = blockIdx.z;")
            return
        blocks = self.core.blocks()
        place = f"{blocks} - 1 - inside / width" if reverse else "inside / width"
        writer.line(f"const int first = program / ({blocks} * group) * group, inside = program % ({blocks} * group);")
        writer.line("const int width = min(group, pairs - first), pair = first + inside % width;")
        writer.line(f"const int block = {place}, {self.pair()};")

    def pair(self) -> str:
        """Declarations of head and batch, of their number `pair`."""
        if self.shared_batches:
            batches = self.core.arguments.size(self.over, 0)
            return f"head = pair / {batches}, batch = pair % {batches}"
        heads = self.core.arguments.size(self.over, 1)
        return f"head = pair % {heads}, batch = pair / {heads}"
