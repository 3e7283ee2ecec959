"""What a tiled kernel of grid "pairs" consists of: its tiles of keys and of queries, its sums, and the loops over queries."""

from dataclasses import dataclass, field

from attn_mlir.backends.gpu.structure import element_name, is_row
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


@dataclass
class PairsKernel:
    """The parts of one kernel; `key_loads`, `fills`, `stores` stand around the loop `heads` over the heads of a group.

    `keys`: rows of a block of keys; `queries`: of a block of queries. `states` are the values per key that are carried over the
    queries of one head, `scatters` what is done with them, `loop` the block of `heads`.
    """

    function: ir.Operation
    keys: int
    queries: int
    key_loop: ir.Operation
    heads: ir.Operation
    key_loads: list[ir.Operation] = field(default_factory=list)
    fills: list[ir.Operation] = field(default_factory=list)
    stores: list[ir.Operation] = field(default_factory=list)
    states: list[ir.Operation] = field(default_factory=list)
    scatters: list[ir.Operation] = field(default_factory=list)
    steps: list[ir.Block] = field(default_factory=list)

    @property
    def query_loop(self) -> ir.Block:
        return self.heads.regions[0].blocks[0]

    @property
    def over(self) -> ir.Value:
        """The tensor of keys whose blocks are programs."""
        number = ir.IntegerAttr(ir.DictAttr(self.function.attributes["tile.kernel"])["over"]).value
        return list(self.function.regions[0].blocks[0].arguments)[number]

    @property
    def present(self) -> ir.Value:
        """How many of a block's keys there are. Where weights and gradients do not depend on keys, these are not loaded."""
        return list(self.key_loads[0].operands)[4] if self.key_loads else list(self.stores[0].operands)[5]

    def step_ops(self, name: str) -> list[ir.Operation]:
        """The ops of this name in the first step: all steps hold the same ones, but for masks."""
        return ops_of(self.steps[0], name) if self.steps else []

    def memory(self, loads: list[ir.Operation]) -> list[ir.Value]:
        """The tensors that these loads read, each once."""
        return list(dict.fromkeys(load.operands[0] for load in loads))


def ops_of(block: ir.Block, *names: str) -> list[ir.Operation]:
    """The ops of these names directly in a block."""
    return [view.operation for view in block.operations if view.operation.name in names]


def read_kernel(function: ir.Operation) -> PairsKernel:
    """Takes a kernel apart. Raises UnsupportedError if it is no kernel of pairs as `attn-tile` makes them."""
    fields = ir.DictAttr(function.attributes["tile.kernel"])
    keys, queries = (ir.IntegerAttr(fields[name]).value for name in ("block_q", "block_kv"))
    key_loop = _only(function.regions[0].blocks[0], "scf.for")
    block = key_loop.regions[0].blocks[0]
    found = PairsKernel(function, keys, queries, key_loop, _only(block, "scf.for"))
    found.key_loads, found.fills, found.stores = (ops_of(block, f"tile.{name}") for name in ("load", "fill", "store"))
    found.states, found.scatters = (ops_of(found.query_loop, f"tile.{name}") for name in ("fill", "scatter_add"))
    _find_steps(found.query_loop, found.steps)
    return found


def _find_steps(block: ir.Block, steps: list[ir.Block]) -> None:
    for op in ops_of(block, "scf.for", "scf.if"):
        for region in op.regions:
            for inner in region.blocks:
                if ops_of(inner, "tile.load", "tile.map", "tile.dot"):
                    steps.append(inner)
                else:
                    _find_steps(inner, steps)


def _only(block: ir.Block, name: str) -> ir.Operation:
    found = ops_of(block, name)
    if len(found) != 1:
        raise UnsupportedError(f"hopper: a kernel of pairs has one loop here, got {len(found)}")
    return found[0]


def check_types(kernel: PairsKernel) -> str:
    """The element type of all operands of products: "f16" or "bf16". Raises UnsupportedError for others, and for sums in f64."""
    loads = [*kernel.key_loads, *(op for step in kernel.steps for op in ops_of(step, "tile.load"))]
    elements = {element_name(op.results[0].type) for op in loads}
    if len(elements) != 1 or not elements <= {"f16", "bf16"}:
        raise UnsupportedError(f"hopper: products take tensors of one type, f16 or bf16, got {', '.join(sorted(elements)) or 'none'}")
    for op in (*kernel.fills, *kernel.states):
        if element_name(op.results[0].type) != "f32":
            raise UnsupportedError("hopper: sums are f32")
        if op in kernel.states and not is_row(op.results[0].type):
            raise UnsupportedError("hopper: what is carried over the queries of one head has one value for each key")
    return elements.pop()


def semaphore_tensor(kernel: PairsKernel) -> ir.Value:
    """A tensor of queries: there is a counter for each block of its rows and each warpgroup."""
    return kernel.step_ops("tile.load")[0].operands[0]


def as_int(core: Core, value: ir.Value) -> str:
    """A number of rows as an int, whatever it was computed in."""
    text = core.value(value)
    return text if core.scalars.type_of(value) == "int" else f"(int){text}"


def key_count(core: Core, kernel: PairsKernel) -> str:
    """How many keys the program has, a C++ expression."""
    return as_int(core, kernel.present)
