"""What all kernels of grid "chunks" for Hopper have in common: a state that a loop carries, tiles of k and v, where states are stored."""

from collections.abc import Iterable
from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import body, constant, operations
from attn_mlir.backends.gpu.writer import CodeWriter
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.scan_patterns import InputTile, made, need, view_of
from attn_mlir.backends.nvidia.hopper.wgmma import ROW_BYTES
from attn_mlir.mlir import ir

CHUNK = 64
"""Positions of a chunk."""
ATOM = 64
"""Columns of a swizzle atom of shared memory, and columns of v that a warpgroup works on."""
ATOM_BYTES = CHUNK * ROW_BYTES
"""Bytes of a swizzle atom."""
ALL = 1
"""Named barrier of all warpgroups that hold states; 2 and 3 are those of one."""
VALUES = (64, 128)
"""Columns of v of one program."""


@dataclass(kw_only=True)
class ScanFrame:
    """One kernel: `loop` carries `state`, which is `initial` first (None: zeros) and `following` after a chunk.

    `packed`: tiles of a chunk may reach into another sequence. `transposed`: states in memory have a row for each column of v. `states`
    stores the state at boundaries (in `branch`), `final` the last one; None where there is no such result.
    """

    kernel: ir.Operation
    loop: ir.Operation
    state: ir.Value
    following: ir.Value
    initial: ir.Operation | None
    k: InputTile
    v: InputTile
    packed: bool
    transposed: bool
    states: ir.Operation | None
    branch: ir.Operation | None
    final: ir.Operation | None

    @property
    def begin(self) -> ir.Value:
        """The position of the chunk's first row."""
        return self.k.load.operands[3]

    @property
    def count(self) -> ir.Value:
        """How many rows of the chunk exist."""
        return self.k.load.operands[4]

    @property
    def keys(self) -> int:
        """Columns of q and k."""
        return self.k.columns

    @property
    def values(self) -> int:
        """Columns of v that a program works on."""
        return self.v.columns

    @property
    def element(self) -> str:
        """ "f16" or "bf16"."""
        return str(ir.RankedTensorType(self.k.load.results[0].type).element_type)

    def check_memory(
        self, inputs: Iterable[InputTile], rows: ir.Operation | None, sums: Iterable[ir.Operation | None], wide: bool = False
    ) -> None:
        """Checks what a chunk reads and stores. Raises OtherKernelError for what the generated code does not know.

        `inputs` and rows of o (`rows` stores them, None: they are of no use) are of one type of 16 bits and lie where the chunk does;
        with `wide`, rows may be f32.
        These, `sums` and states are in memory that is an argument.
        """
        loads = [each.load for each in inputs]
        kinds = {str(ir.RankedTensorType(load.results[0].type).element_type) for load in loads}
        if rows is not None:
            of_rows = str(ir.MemRefType(rows.operands[1].type).element_type)
            kinds.update(() if wide and of_rows == "f32" else (of_rows,))
            need(list(rows.operands)[4:6] == [self.begin, self.count])
        need(kinds == {self.element} and self.element in ("f16", "bf16"), f"its scans take f16 or bf16, not {', '.join(sorted(kinds))}")
        need(all(list(load.operands)[3:5] == [self.begin, self.count] for load in loads))
        stored = [op.operands[1] for op in (rows, *sums, self.states, self.final) if op is not None]
        for memory in [*stored, *([] if self.initial is None else [self.initial.operands[0]])]:
            view_of(memory)


def check_columns(keys: int, values: int, known_keys: tuple[int, ...], known_values: tuple[int, ...], op: ir.Operation) -> None:
    """Raises OtherKernelError for columns that the generated code does not know."""
    for columns, known_columns, what in ((keys, known_keys, "q and k"), (values, known_values, "v")):
        words = f"{', '.join(map(str, known_columns[:-1]))} or {known_columns[-1]}"
        need(columns in known_columns, f"its scans take head dimensions of {what} of {words}, not {columns}", op)


def declare_place(writer: CodeWriter) -> None:
    """Declares where a thread of the warpgroups that hold states is."""
    writer.line(
        "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;",
        "const int row = 16 * warp + lane / 4, column = lane % 4 * 2;",
        "const bool leader = threadIdx.x % 128 == 0;",
        "// Of matrices that are transposed on their way: this lane's row of 16 bytes in a atom, for columns of matrices c and c + 1.",
        "const int turned_row = lane / 16 * 8 + lane % 8, turned_column = (16 * warp + lane / 8 % 2 * 8) * 2;",
    )


def bind_position(core: Core, scan: ScanFrame, number: str) -> None:
    """Declares the position of the loop over chunks in the chunk of that number."""
    begin, _, step = (core.value(value) for value in list(scan.loop.operands)[:3])
    name = core.names.fresh("position")
    core.writer.line(f"const int {name} = {begin} + {number} * {step};")
    core.scalars.bind(next(iter(body(scan.loop).arguments)), name)


def loop_of(kernel: ir.Operation) -> ir.Operation:
    """The loop over chunks, which carries a state and nothing else."""
    loops = [op for op in operations(body(kernel)) if op.name == "scf.for"]
    need(len(loops) == 1 and len(loops[0].results) == 1)
    return loops[0]


def need_all(inner: list[ir.Operation], used: list[ir.Operation]) -> None:
    """Raises OtherKernelError where an op on tiles of the loop is left over."""
    need(all(op in used for op in inner if op.name.startswith(("tile.", "scf.")) and op.name != "scf.yield"))


def is_packed(kernel: ir.Operation) -> bool:
    """Whether sequences lie side by side."""
    return "sequences" in ir.DictAttr(kernel.attributes["tile.kernel"])


def states_of(inner: list[ir.Operation], state: ir.Value, following: ir.Value) -> tuple[ir.Operation | None, ir.Operation | None]:
    """The store of a state at a boundary, and the branch it is in."""
    branches = [op for op in inner if op.name == "scf.if"]
    need(len(branches) <= 1 and all(not list(op.results) and len(op.regions[1].blocks) == 0 for op in branches))
    stores = [op for op in (operations(body(branches[0])) if branches else inner) if op.name == "tile.store"]
    stores = [op for op in stores if op.operands[0] in (state, following)]
    need(len(stores) == 1 if branches else len(stores) <= 1)
    return (stores[0] if stores else None), (branches[0] if branches else None)


def final_of(function: list[ir.Operation], loop: ir.Operation) -> ir.Operation | None:
    """The store of the state after the loop, the only one there may be."""
    finals = [op for op in function if op.name == "tile.store"]
    need(len(finals) <= 1 and all(op.operands[0] == loop.results[0] for op in finals))
    return finals[0] if finals else None


def initial_of(loop: ir.Operation) -> ir.Operation | None:
    """The load of the initial state; None for zeros."""
    op = made(list(loop.operands)[3], "tile.fill", "tile.load")
    if op.name == "tile.load":
        return op
    need(constant(op.operands[0]) == 0.0)
    return None
