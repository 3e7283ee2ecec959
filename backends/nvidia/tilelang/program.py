"""From a scheduled kernel in the `tile` dialect to a TileLang program: one `prim_func`, as Python that can be read, saved and run."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.attributes import grid_kind
from attn_mlir.backends.gpu.kernel import KernelParameter
from attn_mlir.backends.gpu.rules import Rule, rule_of
from attn_mlir.backends.nvidia.tilelang import chunks, products
from attn_mlir.backends.nvidia.tilelang.context import INDENT, Context, constant
from attn_mlir.backends.nvidia.tilelang.elements import print_scatter, print_store
from attn_mlir.backends.nvidia.tilelang.expressions import ACCURATE
from attn_mlir.backends.nvidia.tilelang.maps import Map, put_off
from attn_mlir.backends.nvidia.tilelang.solves import SOLVE, SOURCE, print_solve
from attn_mlir.backends.nvidia.tilelang.structure import print_for, print_if
from attn_mlir.backends.nvidia.tilelang.tiles import most_at_once
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

_HEAD = '''"""{title}

Made by attn-mlir. `python FILE [sm_90a|sm_80]` prints the CUDA that TileLang makes of it; `build()` compiles it for the GPU at hand: the
result is called with tensors for pointers, and numbers for the rest.
"""

import sys

import tilelang
import tilelang.language as T
from tvm.target import Target

# No TMA and no roles of warps: the CUDA function then takes pointers and numbers only. Accesses are guarded where they have to be.
PASSES = {{
    "tl.disable_tma_lower": True,
    "tl.disable_warp_specialized": True,
    "tl.disable_safe_memory_legalize": True,
{more}}}


{functions}@T.prim_func
def {name}(
'''

_MERGED = '    "tl.enable_aggressive_shared_memory_merge": True,\n'
"""Tiles share memory where one is not needed any more when another one is made."""
_BLOCKS = {"pairs": "keys", "chunks": "columns of the state"}

_TAIL = '''

def lower(arch: str = "sm_90a"):
    """The program for a chip; its `kernel_source` is CUDA C++."""
    target = Target({{"kind": "cuda", "arch": arch}})
    with target, tilelang.transform.PassContext(config=PASSES):
        return tilelang.lower({name}, target=target)


def build():
    """The kernel, compiled for the GPU at hand."""
    return tilelang.compile({name}, target="cuda", pass_configs=PASSES)


if __name__ == "__main__":
    print(lower(*sys.argv[1:]).kernel_source)
'''


@dataclass(frozen=True)
class PrintedKernel:
    """A printed program. `parameters` are those that its CUDA function may have, by their names there; it leaves out unused ones."""

    name: str
    text: str
    parameters: dict[str, KernelParameter]
    threads: int
    shared_bytes: int
    """Of all its tiles, or of those that are needed at one time where others share their memory; TileLang may find that less is needed."""
    accurate: bool
    """Whether it calls functions whose fast approximations are too coarse."""


def print_program(kernel: ir.Operation, threads: int, stages: int = 1, deterministic: bool = False) -> PrintedKernel:
    """Prints a tiled kernel; a `deterministic` one adds scattered values in a fixed order.

    Raises UnsupportedError where TileLang, or this printer, cannot do something.
    """
    context = Context(kernel, threads, stages, deterministic)
    name = context.names.new(ir.StringAttr(kernel.attributes["sym_name"]).value)
    grid = grid_kind(kernel)
    printer = _Printer(context, kernel, grid)
    launch = printer.launch()
    printer.print_block(kernel.regions[0].blocks[0])
    memory, solves = context.memory, find_all(kernel, SOLVE)
    body = [
        *[f"{INDENT}{tensor}" for tensor in memory.tensors],
        f"{INDENT}with T.Kernel({launch}, threads={threads}) as (block, head, batch):",
        *([f"{INDENT * 2}T.import_source(SOLVE)"] if solves else []),
        *[f"{INDENT * 2}{line}" for line in context.tiles.lines],
        *context.lines,
    ]
    title = f"{name}: one program for each block of {_BLOCKS.get(grid, 'rows')}, head and batch."
    parameters = [f"{INDENT}{declared}," for declared in memory.signature()]
    head = _HEAD.format(title=title, name=name, more=_MERGED if context.pieces else "", functions=SOURCE if solves else "")
    text = head + "\n".join([*parameters, "):", *body]) + "\n" + _TAIL.format(name=name)
    shared = most_at_once(context.tiles.shared, context.lines) if context.pieces else context.tiles.shared_bytes
    return PrintedKernel(name, text, memory.parameters, threads, shared, bool(find_all(kernel, *ACCURATE)))


class _Printer:
    """Walks over the ops of a kernel."""

    def __init__(self, context: Context, kernel: ir.Operation, grid: str) -> None:
        self._context, self._kernel, self._grid = context, kernel, grid
        facts = ir.DictAttr(kernel.attributes["tile.kernel"])
        over = ir.IntegerAttr(facts["over"]).value if "over" in facts else 0
        self._over = kernel.regions[0].blocks[0].arguments[over]
        if not isinstance(self._over.type, ir.MemRefType) or ir.MemRefType(self._over.type).rank < 3:
            raise UnsupportedError(f"tilelang: a kernel that runs over {self._over.type}, which is no [batch, head, position, ...]")
        self._rows, self._packed = ir.IntegerAttr(facts["block_q"]).value, "lengths" in facts
        for argument in kernel.regions[0].blocks[0].arguments:
            if not isinstance(argument.type, ir.MemRefType):
                context.scalars.bind(argument, context.memory.name(argument))
        for wanted in ("block", "head", "batch"):
            context.names.new(wanted)

    def launch(self) -> str:
        """The extents of the grid."""
        memory = self._context.memory
        if self._grid == "chunks":
            return self._launch_chunks()
        arguments = list(self._kernel.regions[0].blocks[0].arguments)
        if self._packed:  # the last row of a list of work tells how many there are
            return f"{memory.size(arguments[-1], 0)} - 1, {memory.size(self._over, 1)}, 1"
        size = memory.name(arguments[-1]) if self._grid == "pairs" else str(self._rows)
        batch, heads, rows = (memory.size(self._over, dim) for dim in range(3))
        return f"T.ceildiv({rows}, {size}), {heads}, {batch}"

    def _launch_chunks(self) -> str:
        """Blocks of the state's columns, heads, and sequences of the batch."""
        facts, memory = ir.DictAttr(self._kernel.attributes["tile.kernel"]), self._context.memory
        blocks = ir.IntegerAttr(facts["blocks"]).value if "blocks" in facts else 1
        batch, heads = (memory.size(self._over, dim) for dim in range(2))
        if "sequences" in facts:
            offsets = self._kernel.regions[0].blocks[0].arguments[ir.IntegerAttr(facts["sequences"]).value]
            batch = f"{memory.size(offsets, 0)} - 1"
        return f"{blocks}, {heads}, {batch}"

    def print_block(self, block: ir.Block) -> None:
        """Prints every op of a block but its terminator."""
        for view in list(block.operations)[:-1]:
            self._print(view.operation)

    def _print(self, op: ir.Operation) -> None:
        rule_of(_RULES, op, "tilelang")(self, op)

    def _load(self, op: ir.Operation) -> None:
        context = self._context
        if context.scans and ir.RankedTensorType(op.results[0].type).element_type.width == 32:
            chunks.print_state(context, op)
        else:
            products.print_load(context, op)

    def _map(self, op: ir.Operation) -> None:
        context = self._context
        if context.scans and chunks.print_uniform(context, op):
            return
        if put_off(op):
            context.later.append(op)
        else:
            Map(context, op).print()

    def _for(self, op: ir.Operation) -> None:
        over_chunks = self._context.scans and op.block == self._kernel.regions[0].blocks[0]
        (chunks.print_scan if over_chunks else print_for)(self._context, op, self.print_block)

    def _program_id(self, op: ir.Operation) -> str:
        """Under a causal mask the last rows take longest: they come first, in lists of work, too."""
        axis = ir.IntegerAttr(op.attributes["axis"]).value
        name = ("block", "head", "batch")[axis]
        if axis == 0 and self._grid == "rows" and not self._packed:
            rows = self._context.memory.size(self._over, 2)
            return f"(T.ceildiv({rows}, {self._rows}) - 1 - block)"
        return name

    def _offset(self, value: ir.Value) -> str:
        """Where a view begins: a program's own columns as an expression, which TileLang sees to be a multiple of their number."""
        maker = None if isinstance(value.owner, ir.Block) else value.owner.operation
        if maker is not None and maker.name == "arith.muli" and constant(maker.operands[1]) is not None:
            factor = maker.operands[0]
            if not isinstance(factor.owner, ir.Block) and factor.owner.operation.name == "tile.program_id":
                return f"{self._context.text(factor)} * {constant(maker.operands[1])}"
        return self._context.text(value)

    def _dim(self, op: ir.Operation) -> None:
        argument, dim = op.operands
        owner = dim.owner.operation
        if owner.name != "arith.constant":
            raise UnsupportedError(f"tilelang: the size of a dimension that is computed ({source_line(op.location)})")
        size = self._context.memory.size(argument, ir.IntegerAttr(owner.attributes["value"]).value)
        self._context.scalars.bind(op.results[0], size)


def _of_context(rule: Rule) -> Rule:
    """A rule that needs the context alone."""
    return lambda printer, op: rule(printer._context, op)


def _product(rule: Rule) -> Rule:
    """The same for a product, after which a loop over chunks needs some tiles no more."""

    def print_product(printer: _Printer, op: ir.Operation) -> None:
        rule(printer._context, op)
        if printer._context.scans:
            printer._context.release(op)

    return print_product


_RULES: dict[str, Rule] = {
    "arith.*": _of_context(lambda context, op: context.text(op.results[0])),
    "arith.constant": lambda printer, op: None,
    "attn.range": _of_context(products.print_range),
    "math.*": _of_context(lambda context, op: context.text(op.results[0])),
    "memref.dim": lambda printer, op: printer._dim(op),
    "memref.load": _of_context(lambda context, op: context.text(op.results[0])),
    "memref.subview": lambda printer, op: printer._context.memory.view(op, printer._offset),
    "scf.for": _Printer._for,
    "scf.if": lambda printer, op: print_if(printer._context, op, printer.print_block),
    "tensor.extract": _of_context(lambda context, op: context.scalars.name(op.results[0])),
    "tile.accumulate": _of_context(products.print_accumulate),
    "tile.cumsum": _of_context(chunks.print_cumsum),
    "tile.dot": _product(products.print_dot),
    "tile.dot_add": _product(products.print_dot_accumulate),
    "tile.dot_rescale": _product(products.print_dot_accumulate),
    "tile.fill": _of_context(products.print_fill),
    "tile.load": _Printer._load,
    "tile.map": _Printer._map,
    "tile.program_id": lambda printer, op: printer._context.scalars.bind(op.results[0], printer._program_id(op)),
    "tile.scatter_add": _of_context(print_scatter),
    "tile.store": _of_context(print_store),
    SOLVE: _of_context(print_solve),
}
