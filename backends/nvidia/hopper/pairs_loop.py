"""Walks the loops over queries of a kernel of pairs, once for each role: the thread that loads tiles, the warp of row values, consumers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from attn_mlir.backends.gpu.structure import element_name
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout
from attn_mlir.backends.nvidia.hopper.pairs_values import column_values, maker
from attn_mlir.backends.nvidia.ordered_sums import depends
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

STEP, STAGE, PARITY = "step", "stage", "parity"


class RolePrinter(ABC):
    """Prints `for` and `if` around the steps of one role. `placed`: the ops of a step whose tiles' places in memory the role needs."""

    placed: tuple[str, ...] = ()

    def __init__(self, core: Core, kernel: PairsKernel, layout: BackwardLayout) -> None:
        self.core, self.kernel, self.layout = core, kernel, layout

    @abstractmethod
    def step(self, block: ir.Block) -> None:
        """Prints the work on one block of queries."""

    def enter(self, carried: list[ir.Value], initial: list[ir.Value]) -> None:
        """The block's names of carried tiles."""
        return

    def leave(self, results: list[ir.Value], values: list[ir.Value]) -> None:
        """The names behind a loop or branch of what it carried."""
        return

    def before_heads(self, block: ir.Block) -> None:
        """Prints what stands before the loops over queries of one head."""
        return

    def after_heads(self, block: ir.Block) -> None:
        """Prints what follows the loops over queries of one head."""
        return

    def print(self) -> None:
        """Prints the loop over the heads of a group and all in it. The variable of steps, declared before, counts on."""
        core, loop = self.core, self.kernel.heads
        core.scalars.bind(loop.operands[1], self._group())
        carried = list(self.kernel.query_loop.arguments)
        with self._for(loop):
            self.enter(carried[1:], list(loop.operands)[3:])
            self._places()
            self.before_heads(self.kernel.query_loop)
            self._walk(self.kernel.query_loop)
            self.after_heads(self.kernel.query_loop)
        self.leave(list(loop.results), list(loop.operands)[3:])

    def _group(self) -> str:
        """The number of heads of a group."""
        return f"attn::load_shared_int(shared + {self.layout.group})"

    def _places(self) -> None:
        """Prints the heads and batches of tiles here, once for all steps: there may be a division in them."""
        moving = [op.regions[0].blocks[0].arguments[0] for op in find_all_loops(self.kernel.query_loop)]
        for step in self.kernel.steps:
            for op in ops_of(step, *self.placed):
                for value in place_of(op):
                    if not any(depends(value, variable) for variable in moving):
                        self.core.value(value)

    def _walk(self, block: ir.Block) -> None:
        ops = ops_of(block, "scf.for", "scf.if")
        if self.layout.descending:
            for op in ops:  # what a loop carries is the same registers in all of them: those of the first one
                self.leave(list(op.results), list(op.operands)[3:])
            ops.reverse()
        for op in ops:
            if op.name == "scf.if":
                self._branch(op)
                continue
            inner = op.regions[0].blocks[0]
            with self._for(op):
                self.enter(list(inner.arguments)[1:], list(op.operands)[3:])
                self._block(inner)
            self.leave(list(op.results), list(op.operands)[3:])

    @contextmanager
    def _for(self, op: ir.Operation) -> Iterator[None]:
        core = self.core
        bounds = list(op.operands)[:3]
        begin, step = core.value(bounds[0]), core.value(bounds[2])
        end = self._group() if op == self.kernel.heads else core.value(bounds[1])
        variable = op.regions[0].blocks[0].arguments[0]
        name = core.names.fresh("member" if op == self.kernel.heads else "query0")
        type_ = core.scalars.type_of(variable)
        core.scalars.bind(variable, name)
        if op != self.kernel.heads and self.layout.pieces:
            # Read for each loop again, so that it needs no registers elsewhere.
            rows, before = core.names.fresh("rows"), f"{core.value(self.kernel.query_loop.arguments[0])} * rows_of_head"
            slot = f"shared + {self.layout.pieces + 32} + 16 * (attn::opaque({STEP}) >> 28 & {self.layout.PIECE_SLOTS - 1})"
            core.writer.line(f"const int2 {rows} = attn::rows_of_piece({slot});")
            begin, end = f"max({begin}, {rows}.x - {before})", f"min({end}, {rows}.y - {before})"
        core.writer.line("#pragma unroll 1")
        if self.layout.descending and op != self.kernel.heads:
            last = f"{begin} + (({end} - {begin} + {step} - 1) / {step} - 1) * {step}"  # below `begin` where there is none
            with core.scope(f"for ({type_} {name} = {last}; {name} >= {begin}; {name} -= {step})"):
                yield
            return
        with core.scope(f"for ({type_} {name} = {begin}; {name} < {end}; {name} += {step})"):
            yield

    def _block(self, block: ir.Block) -> None:
        if ops_of(block, "tile.load", "tile.dot", "tile.map"):
            stages = self.layout.stages
            stage = "0" if stages == 1 else f"{STEP} % {stages}"
            parity = f"{STEP} & 1" if stages == 1 else f"{STEP} / {stages} & 1"
            self.core.writer.line(f"const int {STAGE} = {stage}, {PARITY} = {parity};")
            self.step(block)
            self.core.writer.line(f"++{STEP};")
        else:
            self._walk(block)

    def _branch(self, op: ir.Operation) -> None:
        core = self.core
        condition = core.value(op.operands[0])
        then, otherwise = (list(region.blocks) for region in op.regions)
        with core.scope(f"if ({condition})"):
            self._block(then[0])
            self._copy(op, then[0])
        if otherwise and len(list(otherwise[0].operations)) > 1:
            with core.scope("else"):
                self._block(otherwise[0])
                self._copy(op, otherwise[0])
        self.leave(list(op.results), [])

    def _copy(self, op: ir.Operation, block: ir.Block) -> None:
        """Tiles that the branch made become the ones that are carried."""
        return


def find_all_loops(block: ir.Block) -> list[ir.Operation]:
    """The loops in a block, at any depth."""
    found = ops_of(block, "scf.for")
    for op in ops_of(block, "scf.for", "scf.if"):
        for region in op.regions:
            for inner in region.blocks:
                found += find_all_loops(inner)
    return found


def place_of(op: ir.Operation) -> list[ir.Value]:
    """Batch and head of a `tile.load` or `tile.accumulate`."""
    return list(op.operands)[1:3] if op.name == "tile.load" else list(op.operands)[4:6]


def staged_values(core: Core, block: ir.Block) -> list[ir.Value]:
    """The values of query rows that the maps of a step read from shared memory."""
    return [value for op in ops_of(block, "tile.map") if len(list(op.operands)) == 2 for value in column_values(op, core.scalars.type_of)]


def step_limit(count: ir.Value) -> ir.Value | None:
    """The number of queries of a step, None if it is all of them."""
    op = maker(count)
    return None if op is not None and op.name == "arith.constant" else count


def check_steps(kernel: PairsKernel) -> None:
    """Raises UnsupportedError for steps that differ in what they load and multiply."""
    shapes = {tuple(op.name + element_name(op.results[0].type) for op in ops_of(step, "tile.dot", "tile.load")) for step in kernel.steps}
    if len(shapes) > 1:
        raise UnsupportedError("hopper: all steps of a kernel of pairs multiply the same tensors")
