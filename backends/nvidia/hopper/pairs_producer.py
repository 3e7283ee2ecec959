"""The warps that load tiles by TMA and compute the values of query rows."""

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, as_int, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout
from attn_mlir.backends.nvidia.hopper.pairs_loop import PARITY, STAGE, STEP, RolePrinter, staged_values, step_limit
from attn_mlir.backends.nvidia.hopper.pairs_windows import load_windows
from attn_mlir.backends.nvidia.hopper.tiles import atoms
from attn_mlir.backends.nvidia.ordered_sums import depends
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

KEPT = 2
"""Values of query rows that a thread of the producer reads at once, the first ones before their stage is free: it has few registers."""


class Loader(RolePrinter):
    """The warp that loads the tiles of queries by TMA: one thread does, but all of them find out which tiles are needed."""

    placed = ("tile.load",)

    def step(self, block: ir.Block) -> None:
        core, layout = self.core, self.layout
        loads = {op.operands[0]: op for op in ops_of(block, "tile.load")}
        for pipe, (memory, buffer) in enumerate(layout.queries.items()):
            if memory not in loads:
                raise UnsupportedError("hopper: every step loads the same tensors of queries")
            _, batch, head, row, _ = list(loads[memory].operands)
            full = f"barriers + {layout.full(pipe) - layout.barriers} + 8 * {STAGE}"
            free = f"barriers + {layout.free(pipe) - layout.barriers} + 8 * {STAGE}"
            place = core.arguments.copied_at(memory, *(core.value(value) for value in (row, head, batch)))
            map_ = core.arguments.descriptor(memory, 64, buffer.rows)
            core.writer.line(f"attn::barrier_wait({free}, {PARITY} ^ 1);")  # every warp of consumers has given the stage back
            with core.writer.block("if (lane == 0)"):
                # Bytes first: a copy may land before the next line.
                core.writer.line(f"attn::barrier_arrive_expect({full}, {buffer.bytes});")
                for atom in range(atoms(buffer.columns)):
                    to = f"shared + {buffer.offset + atom * buffer.rows * 128} + {buffer.bytes} * {STAGE}"
                    core.writer.line(f"attn::tma_load({to}, {map_}, {full}, {64 * atom}, {place});")
            core.writer.line("__syncwarp();")  # lanes stay together: the next wait is for all of them


class ColumnWriter(RolePrinter):
    """The warp that computes the values of query rows, or the warps that do (`row_warps`)."""

    def step(self, block: ir.Block) -> None:
        core, layout = self.core, self.layout
        pipe, queries = layout.pipes - 1, self.kernel.queries
        full = f"barriers + {layout.full(pipe) - layout.barriers} + 8 * {STAGE}"
        free = f"barriers + {layout.free(pipe) - layout.barriers} + 8 * {STAGE}"
        # The consumers have given the stage back. Values are computed before, in registers, where all lanes do so together.
        wait = f"attn::barrier_wait({free}, {PARITY} ^ 1);"
        values = staged_values(core, block)
        if layout.windows or layout.bands:
            core.writer.line(wait)
            with core.scope(None):
                load_windows(core, layout, block, STAGE, full)
            wait = ""
        if wait and queries < 32:  # lanes without a row have to wait, too: they arrive for the next stage
            core.writer.line(wait)
            wait = ""
        if values:
            core.writer.line(f"const uint32_t columns = {layout.rows_at(STAGE)};")
            if layout.single_rows:  # where those of the step before were
                before = f"({STEP} - 1) % {layout.stages}"
                free = f"barriers + {layout.free(pipe) - layout.barriers} + 8 * ({before})"
                wait = f"if ({STEP}) attn::barrier_wait({free}, ({STEP} - 1) / {layout.stages} & 1);"
            names = [core.names.fresh("kept") for _ in values]
            parts = next(n for n in (4, 2, 1) if n == 1 or (n * len(values) <= KEPT and queries % (32 * n) == 0))
            among = 32 * layout.row_warps  # each warp has 32 of so many rows, or some of them
            shared = layout.row_warps > 1 and among >= queries
            parts, exists = (1, f"if (first < {queries}) ") if shared else (1 if among > 32 else parts, "")
            if not shared:
                core.writer.line("#pragma unroll 1")
            begin = "lane" if among == 32 else "32 * (warp - 1) + lane"
            with core.scope("" if shared else f"for (int first = {begin}; first < {queries}; first += {among * parts})"):
                core.writer.line(*(["const int first = 32 * (warp - 1) + lane;"] if shared else []))
                self._forget_places(values)
                core.writer.all(f"{core.scalars.type_of(value)} {name}[{parts}];" for value, name in zip(values, names, strict=True))
                with core.unrolled("part", parts):
                    core.writer.line(f"const int query = {f'min(first, {queries - 1})' if shared else 'first + 32 * part'};")
                    core.writer.all(f"{name}[part] = {text};" for name, text in zip(names, self._values(block, values), strict=True))
                core.writer.line(*([wait] if wait else []))
                with core.unrolled("part", parts):
                    for slot, (value, name) in enumerate(zip(values, names, strict=True)):
                        store = "store_shared_int" if core.scalars.type_of(value) == "int" else "store_shared"
                        place = f"columns + {4 * slot * queries} + 4 * first + 128 * part"
                        core.writer.line(f"{exists}attn::{store}({place}, {name}[part]);")
        elif wait:
            core.writer.line(wait)
        core.writer.line(f"attn::barrier_arrive({full});")  # every lane, as each publishes what it wrote

    def _forget_places(self, values: list[ir.Value]) -> None:
        """What follows from the program's place is computed again in each step, not kept in registers."""
        core = self.core
        for op in ops_of(core.kernel.regions[0].blocks[0], "tile.program_id"):
            if not any(depends(value, op.results[0]) for value in values):
                continue
            own = core.names.fresh("own")
            core.writer.line(f"const int {own} = attn::opaque({core.value(op.results[0])});")
            core.scalars.bind(op.results[0], own)

    def _values(self, block: ir.Block, values: list[ir.Value]) -> list[str]:
        """The expressions of the values of row `query`."""
        core, name = self.core, "query"
        limit = self._limit(block)
        if limit is not None:
            name = core.names.fresh("present")
            core.writer.line(f"const int {name} = min(query, {as_int(core, limit)} - 1);")
        for op in ops_of(block, "tile.map"):
            arguments = list(op.regions[0].blocks[0].arguments)
            if len(arguments) == 2:
                core.scalars.bind(arguments[1], name)
        return [core.scalars.emit(value) for value in values]

    def _limit(self, block: ir.Block) -> ir.Value | None:
        count = list(next(op for op in ops_of(block, "tile.map") if len(list(op.operands)) == 2).operands)[1]
        return step_limit(count)


def load_keys(core: Core, kernel: PairsKernel, layout: BackwardLayout) -> None:
    """Prints the loads of the tiles of keys, behind the first barrier, once the program before needs its own no more."""
    loads = {op.operands[0]: op for op in kernel.key_loads}
    places = {
        memory: core.arguments.copied_at(memory, *(core.value(value) for value in list(loads[memory].operands)[3:0:-1]))
        for memory in layout.keys
    }
    tiles = [
        (core.arguments.descriptor(memory, 64, buffer.rows), f"{64 * atom}, {places[memory]}", buffer.offset + atom * buffer.rows * 128)
        for memory, buffer in layout.keys.items()
        for atom in range(atoms(buffer.columns))
    ]
    # The consumers multiply by keys until their program's end.
    core.writer.line(f"attn::barrier_wait(barriers + {layout.keys_free - layout.barriers}, round & 1 ^ 1);")
    with core.writer.block("if (lane == 0)"):
        # Bytes first: a copy may land before the next line.
        core.writer.line(f"attn::barrier_arrive_expect(barriers, {sum(buffer.bytes for buffer in layout.keys.values())});")
        core.writer.all(f"attn::tma_load(shared + {offset}, {map_}, barriers, {place});" for map_, place, offset in tiles)
    core.writer.line("__syncwarp();")  # as above
