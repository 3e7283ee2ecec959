"""The producer warp of a scan: loads of tiles, sums of log decays, and the factors of rows that follow from them."""

from collections.abc import Mapping, Sequence

from attn_mlir.backends.gpu.structure import body, operations, yielded
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.scan_common import ATOM, ATOM_BYTES, CHUNK
from attn_mlir.backends.nvidia.hopper.scan_layout import ScanLayout
from attn_mlir.backends.nvidia.hopper.scan_read import ChunkScan
from attn_mlir.mlir import ir


def bind_rows(core: Core, scan: ChunkScan, block: ir.Block, at: Sequence[Mapping[str, str]]) -> None:
    """Makes what a map reads of rows stand for expressions: of "sums" of log decays and factors "left" and "right", at each argument."""
    tiles = {"sums": scan.prefix, **{name: op and op.results[0] for name, op in (("left", scan.left), ("right", scan.right))}}
    arguments = list(block.arguments)
    for inner in operations(block):
        if inner.name == "tensor.extract" and inner.operands[1] in arguments:
            known = at[arguments.index(inner.operands[1])]
            for name, tile in tiles.items():
                if tile is not None and inner.operands[0] == tile and name in known:
                    core.scalars.bind(inner.results[0], known[name])


class ScanProducer:
    """Prints what the producer warp does for one chunk."""

    def __init__(self, core: Core, scan: ChunkScan, layout: ScanLayout) -> None:
        self._core, self._scan, self._layout = core, scan, layout

    def chunk(self) -> None:
        """Fills a stage."""
        core, writer, layout = self._core, self._core.writer, self._layout
        stages = layout.stages
        writer.line(f"const int stage = number % {stages};")
        writer.line(*layout.addresses(), "const uint32_t full = shared + kFull + 8 * stage;")
        # The consumers read a stage until the end of its chunk; the first use of each waits for nobody.
        writer.line(f"if (number >= {stages}) attn::barrier_wait(shared + kFree + 8 * stage, (number / {stages} & 1) ^ 1);")
        row = core.value(self._scan.begin)
        places = {name: [core.value(v) for v in list(tile.source.load.operands)[1:3]] for name, tile in layout.tiles.items()}
        columns = {
            name: core.value(tile.source.view.column) if tile.source.view.column is not None else "0" for name, tile in layout.tiles.items()
        }
        with writer.block("if (attn::elect_one())"):
            writer.line(f"attn::barrier_arrive_expect(full, {layout.loaded_bytes});")  # bytes first: a copy may land before the next line
            for name, tile in layout.tiles.items():
                descriptor = core.arguments.descriptor(tile.source.view.argument, ATOM, CHUNK)
                batch, head = places[name]
                for atom in range(tile.atoms):
                    to = f"at + {tile.offset + atom * ATOM_BYTES}"
                    first = f"{columns[name]} + {atom * ATOM}" if columns[name] != "0" else str(atom * ATOM)
                    writer.line(f"attn::tma_load({to}, {descriptor}, full, {first}, {row}, {head}, {batch});")
        self._rows()
        writer.line("attn::warp_sync();", "attn::warp_arrive(full, lane == 0);")

    def _rows(self) -> None:
        """Two rows a lane: sums of log decays and factors."""
        core, writer, scan = self._core, self._core.writer, self._scan
        rows = [f"(2 * lane + {e})" for e in range(2)]
        known: list[dict[str, str]] = [{}, {}]
        if scan.steps is not None:
            steps = [self._row_value(scan.steps, row) for row in rows]
            first, second = (core.names.fresh(name) for name in ("even", "odd"))
            writer.line(f"const float {first} = {steps[0]}, {second} = {steps[1]};")
            after = core.names.fresh("sum")
            writer.line(f"const float {after} = attn::sum_of_lanes_before({first} + {second});")
            sums = [f"({after} - {second})", after]
            if scan.total is not None:
                last = core.names.fresh("last")
                writer.line(f"const float {last} = __shfl_sync(0xffffffffu, {after}, 31);")
                core.scalars.bind(scan.total, last)
            self._store("sums", sums)
            known = [{"sums": each} for each in sums]
        for name, op in (("left", scan.left), ("right", scan.right)):
            if op is not None:
                values = [core.names.fresh(name) for _ in rows]
                writer.line(f"const float {', '.join(f'{v} = {self._row_value(op, row)}' for v, row in zip(values, rows, strict=True))};")
                known = [{**each, name: value} for each, value in zip(known, values, strict=True)]
                if name in self._layout.rows:
                    self._store(name, values)
        maps: dict[str, ir.Operation | None] = {"input_decay": scan.input_decay}
        if scan.rows is not None:
            maps = {"output_decay": scan.rows.output_decay, **maps, "result": scan.rows.result, "skip": scan.rows.skip}
        for name, op in maps.items():
            if op is not None:
                self._store(name, [self._row_value(op, row, each) for row, each in zip(rows, known, strict=True)])

    def _row_value(self, op: ir.Operation, row: str, known: Mapping[str, str] | None = None) -> str:
        """The value of a map of rank 1 for a row, of which something is `known`."""
        core = self._core
        with core.scope(None):
            (index,) = body(op).arguments
            core.scalars.bind(index, row)
            bind_rows(core, self._scan, body(op), [known or {}])
            return core.value(yielded(body(op))[0])

    def _store(self, name: str, values: list[str]) -> None:
        self._core.writer.line(f"attn::store_shared2(rows + {self._layout.rows[name]} + 8 * lane, {values[0]}, {values[1]});")
