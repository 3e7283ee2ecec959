"""The warpgroup that makes the sums over keys (dQ) of all consumers, which then wait for each other no more.

Consumers that multiply dS with keys need the dS of each other in every step, so that all of them compute exponentials at the same time, and
none multiplies meanwhile. Here they hand dS over and go on with the next step; this warpgroup multiplies, stages and adds.
"""

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout, SharedBuffer, head_columns
from attn_mlir.backends.nvidia.hopper.pairs_loop import STEP, RolePrinter
from attn_mlir.backends.nvidia.hopper.pairs_reduction import ADDED, add_staged, added_barrier, stage_rows
from attn_mlir.backends.nvidia.hopper.tiles import ROWS
from attn_mlir.backends.nvidia.hopper.wgmma import COLUMNS, SharedOperand, product
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

WARPGROUPS = 2
"""Consumers for which there are named barriers and registers."""
_FULL, FREE_WEIGHTS = 10, 12
"""Named barriers of both copies of weights: all consumers have written them; each consumer may write them again."""
FULL_WEIGHTS = f"{_FULL} + {STEP} % 2"


def free_weights(warpgroup: str | int) -> str:
    """The named barrier that a consumer waits at before it writes weights."""
    return f"{FREE_WEIGHTS} + {STEP} % 2 * {WARPGROUPS} + {warpgroup}"


def check_key_sums(layout: BackwardLayout) -> None:
    """Raises UnsupportedError for kernels whose sums over keys are not made by a warpgroup of their own."""
    kernel, reason = layout.kernel, ""
    others = kernel.scatters or find_all(kernel.function, "attn.kept")
    others = others or any(kernel.step_ops(f"tile.{name}") for name in ("scatter_add", "load_window", "band"))
    targets = {op.operands[2] for op in kernel.step_ops("tile.accumulate")}
    if layout.warpgroups != WARPGROUPS or kernel.queries != ROWS:
        reason = f"blocks of {WARPGROUPS * ROWS} keys and {ROWS} queries, not {kernel.keys} and {kernel.queries}"
    elif max(map(head_columns, (*layout.keys, *layout.queries))) > COLUMNS:
        reason = f"heads of at most {COLUMNS} columns"
    elif len(layout.exchange) != 1 or targets != set(layout.adds) or len(targets) != 1:
        reason = "one sum over keys of one tile of weights, which leaves through TMA"
    elif others:
        reason = "no dropout, and nothing that is captured for every pair"
    if reason:
        raise UnsupportedError(f'hopper: a warpgroup that makes sums over keys needs {reason} (key_sums = "warpgroup")')


def exchanged(layout: BackwardLayout, address: str, block: int | str = 0) -> SharedOperand:
    """Weights [64 queries, keys] of a block of queries, the left operand of a product with keys, which `exchange` wrote at `address`."""
    rows = layout.kernel.queries if layout.turned else layout.kernel.keys
    return SharedOperand(f"{address} + {(ROWS if layout.turned else rows) * 128} * {block}", rows * 128, not layout.turned)


class KeySums(RolePrinter):
    """Its part of a step: waits for the weights of all consumers, multiplies them with the keys, and adds the product to memory."""

    placed = ("tile.accumulate",)

    def __init__(self, core: Core, kernel: PairsKernel, layout: BackwardLayout, element: str) -> None:
        super().__init__(core, kernel, layout)
        self.element = element

    def begin(self) -> None:
        """Tells the consumers that both copies are free."""
        for warpgroup in range(WARPGROUPS):
            for copy in range(2):
                # In advance: a consumer waits before it writes, the first time as well.
                self.core.writer.line(f"attn::named_arrive({FREE_WEIGHTS + copy * WARPGROUPS + warpgroup}, 256);")

    def step(self, block: ir.Block) -> None:
        core, layout, writer = self.core, self.layout, self.core.writer
        (op,) = ops_of(block, "tile.accumulate")
        memory = {load.results[0]: load.operands[0] for load in self.kernel.key_loads}
        target, buffer = op.operands[2], layout.exchange[0]
        keys, added, columns = layout.keys[memory[op.operands[1]]], layout.adds[target], layout.split(target).columns
        # All consumers have written dS of this step.
        writer.line(f"attn::named_sync({FULL_WEIGHTS}, {128 * (WARPGROUPS + 1)});", "attn::wgmma_begin();")
        fragment = core.fragment("query_sum", columns)
        core.uses("", columns, "shared", self.element, True, not layout.turned)
        a = exchanged(layout, f"shared + {buffer.offset} + {buffer.bytes} * ({STEP} % 2)")
        b = SharedOperand(f"shared + {keys.offset}", keys.rows * 128, True)
        writer.all(product(fragment.name, columns, self.kernel.keys, a, b, self.element, clear=True))
        writer.line("attn::wgmma_commit();", "attn::wgmma_wait<0>();", f"attn::hold({fragment.name});")
        for warpgroup in range(WARPGROUPS):
            # The product has read this copy of dS: each consumer may write it, two steps later.
            writer.line(f"attn::named_arrive({free_weights(warpgroup)}, 256);")
        if layout.reduction_warps:
            self._hand_over(fragment.name, added, columns)
            return
        # The additions of two steps before have been read from where the sums of this one go.
        writer.line("if (threadIdx.x % 128 == 0) attn::bulk_wait_read<1>();", f"attn::named_sync({ADDED}, 128);")
        copy = f"({STEP} % 2)"
        stage_rows(core, fragment.name, columns, f"shared + {added.offset} + {added.bytes} * {copy}", layout.spread)
        # One thread adds by TMA what all have written.
        writer.line("attn::fence_proxy_async();", f"attn::named_sync({ADDED + 1}, 128);")
        with core.scope("if (threadIdx.x % 128 == 0)"):
            add_staged(core, layout, op, copy)
            writer.line("attn::bulk_commit();")

    def _hand_over(self, name: str, added: SharedBuffer, columns: int) -> None:
        """Leaves the sums to the warp that adds those of every other step."""
        core, layout, copy = self.core, self.layout, f"{STEP} % 2"
        # It has added those of two steps before from where these go: TMA has read them.
        core.writer.line(f"attn::barrier_wait({added_barrier(layout)} + 8 * ({copy}), {STEP} / 2 & 1 ^ 1);")
        stage_rows(core, name, columns, f"shared + {added.offset} + {added.bytes} * ({copy})", layout.spread)
        # 128 threads have written them, and its own 32 meet these.
        core.writer.line("attn::fence_proxy_async();", f"attn::named_arrive({ADDED} + {copy}, 160);")
