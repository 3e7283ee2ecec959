"""Kernels of parts whose values are the first columns of their keys, as MLA's: two warpgroups share 64 rows, each has half of the columns.

What the warpgroups do is in `shared_halves`. Scores are computed once for up to 512 columns of v, and a block of keys is loaded once for
scores and sums.
"""

from collections.abc import Mapping

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.emitters import Refusal
from attn_mlir.backends.gpu.scalar_bounds import MAX_COLUMNS
from attn_mlir.backends.gpu.structure import body, operations
from attn_mlir.backends.nvidia.hopper.gathered_rows import GATHERING, GatheredRows
from attn_mlir.backends.nvidia.hopper.memory import SharedMemory
from attn_mlir.backends.nvidia.hopper.row_kernels import RowsKernel
from attn_mlir.backends.nvidia.hopper.shared_alternating import Alternation
from attn_mlir.backends.nvidia.hopper.shared_halves import BOTH, FREE, KEYS, SUMS, Follower, Leader, SharedForm, is_same
from attn_mlir.backends.nvidia.hopper.shared_maps import Changes
from attn_mlir.backends.nvidia.hopper.stores import Stores
from attn_mlir.backends.nvidia.hopper.tiles import ROWS
from attn_mlir.backends.nvidia.hopper.wgmma import COLUMNS, ROW_BYTES
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk


def read_form(kernel: ir.Operation) -> SharedForm:
    """Raises UnsupportedError for kernels of another form."""
    sums = find_all(kernel, *SUMS)
    columns = {ir.RankedTensorType(op.results[0].type).shape[1] for op in sums}
    if len(columns) != 1 or (wide := columns.pop()) % (2 * COLUMNS) or not MAX_COLUMNS < wide <= 2 * MAX_COLUMNS:
        raise UnsupportedError(f"hopper: two warpgroups share {MAX_COLUMNS} to {2 * MAX_COLUMNS} columns of v, a multiple of {2 * COLUMNS}")
    if find_all(kernel, "scf.if", "attn.kept"):
        raise UnsupportedError("hopper: two warpgroups share no weights of blocks that are classified, nor with dropout")
    loads = {op.results[0]: op for op in find_all(kernel, "tile.load")}
    keys_of: dict[ir.Operation, ir.Operation] = {}
    for op in sums:
        of_keys = [dot for view in op.block.operations if (dot := view.operation).name == "tile.dot"]
        tiles = [*of_keys[0].operands, op.operands[-1]] if len(of_keys) == 1 else []
        if len(tiles) != 3 or any(tile not in loads for tile in tiles):
            raise UnsupportedError("hopper: two warpgroups share weights of one product of tiles as they are in memory", op)
        k, v = loads[tiles[1]], loads[tiles[2]]
        if list(k.operands)[1:] != list(v.operands)[1:] or ir.RankedTensorType(tiles[1].type).shape[1] < wide:
            raise UnsupportedError("hopper: values are columns of the keys of the same rows", v)
        keys_of[v] = k
    ends = {op: rows for op in find_all(kernel, "tile.map") if (rows := _read_by_end(op, wide)) is not None}
    form = SharedForm(keys_of, wide, ends)
    for op in walk(kernel):
        reads = any(isinstance(value.type, ir.RankedTensorType) and form.is_wide(value.type) for value in op.operands)
        if reads and op.name not in (*SUMS, "scf.for", "scf.yield", "tile.store", "tensor.extract") and not is_same(op):
            raise UnsupportedError("hopper: two warpgroups share the sums of parts, which are stored as they are", op)
    return form


def _read_by_end(op: ir.Operation, columns: int) -> tuple[ir.Value, ...] | None:
    """The values of rows that a map reads which ends sums of so many columns, element by element; None for other maps.

    Raises UnsupportedError for maps that read sums otherwise.
    """
    reads = [inner for inner in operations(body(op)) if inner.name == "tensor.extract"]
    types = [ir.RankedTensorType(read.operands[0].type) for read in reads]
    if is_same(op) or not any(type_.rank == 2 and type_.shape[1] == columns for type_ in types):
        return None
    arguments = list(body(op).arguments)
    rows = [read.operands[0] for read, type_ in zip(reads, types, strict=True) if type_.rank == 1]
    own = all(list(read.operands)[1:] == arguments[: type_.rank] for read, type_ in zip(reads, types, strict=True))
    alone = len({read.operands[0] for read, type_ in zip(reads, types, strict=True) if type_.rank == 2}) == 1
    columns_only = sum(1 for use in arguments[1].uses) == len(reads) - len(rows)
    stored = len(op.results) == 1 and all(use.owner.operation.name == "tile.store" for use in op.results[0].uses)
    if not (own and alone and columns_only and stored and ir.RankedTensorType(op.results[0].type).rank == 2):
        raise UnsupportedError("hopper: two warpgroups share sums that are ended element by element, and stored", op)
    return tuple(dict.fromkeys(rows))


def plan_shared(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | Refusal:
    """The schedule of such a kernel."""
    consumer, producer = GATHERING[2] if choices.get("gather") else (232, 40)
    fields: Fields = {
        "values": "keys", "flow": "plain", "stages": 2, "staging": "own", "order": "dynamic", "group": 16, "reverse": 1, "ping_pong": 0,
        "vote": 1, "pin": 0, "queries": "shared", "consumer_registers": consumer, "producer_registers": producer,
    }  # fmt: skip
    fields |= {name: choices[name] for name in ("gather",) if name in choices}
    try:
        needed = SharedValuesKernel(kernel, fields).emit().shared_bytes
    except UnsupportedError as error:
        return Refusal.of(error)
    if needed > target.shared_bytes:
        return Refusal(f"it needs {needed} bytes of shared memory, of {target.shared_bytes}")
    return fields | {"alternate": int(choices.get("alternate", 1) and _alternates(kernel, fields | {"alternate": 1}, target))}


def _alternates(kernel: ir.Operation, fields: Fields, target: NvidiaTarget) -> bool:
    """Whether the warpgroups may take turns in leading (`shared_alternating`)."""
    try:
        return SharedValuesKernel(kernel, fields).emit().shared_bytes <= target.shared_bytes
    except UnsupportedError:
        return False


class SharedValuesKernel(RowsKernel):
    """Prints one kernel."""

    def __init__(self, kernel: ir.Operation, schedule: Fields) -> None:
        super().__init__(kernel, schedule)
        if self.warpgroups != 1 or self.core.width != KEYS:
            raise UnsupportedError(f"hopper: two warpgroups share weights of {ROWS} rows and {KEYS} keys")
        self.form = read_form(kernel)
        self.alternation: Alternation | None = None
        self.warpgroups = 2
        self.memory = SharedMemory(self.core, 8)
        self.memory.gathered = GatheredRows(self.core, self.memory.layout) if schedule.get("gather") else None
        self.memory.in_sections = True
        self.programs.warps = 8
        self.stores = Stores(self.core, self.memory, ROWS)

    def _place(self) -> None:
        super()._place()
        self.memory.layout.tile("kWeights", ROWS * ROW_BYTES)
        self.memory.layout.slot("kFactors", ROWS * 4)
        if self.schedule.get("alternate"):
            self.alternation = Alternation(self.form, find_all(self.kernel, "scf.for"))
            self.alternation.allocate(self.memory.layout)

    def _brings(self, load: ir.Operation) -> bool:
        return load not in self.form.keys_of

    def _consumers(self) -> None:
        core, writer, memory = self.core, self.core.writer, self.memory
        writer.line("const int lane = threadIdx.x % 32;")
        writer.line("const int row = threadIdx.x / 32 % 4 * 16 + lane / 4, column = lane % 4 * 2;")
        writer.all(memory.iterations())
        writer.line(f"if (warpgroup == 1) attn::named_arrive({FREE}, {BOTH});")
        parts = (core, memory, self.stores, Changes(core, 128), self.stages)
        with self.programs.each(producer=False):
            memory.wait_program_tiles(self.programs.round)
            known = dict(core.tiles)
            for head, kind in (("if (warpgroup == 0)", Leader), ("else", Follower)):
                core.tiles.clear()
                core.tiles.update(known)
                with core.scope(head):
                    printer = kind(self.form, self.alternation, *parts)
                    for op in operations(body(self.kernel))[:-1]:
                        printer.operation(op, [])
            memory.free_program_tiles()
