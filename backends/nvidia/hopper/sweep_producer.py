"""The producer warp of a sweep: loads of tiles, sums of log decays, and the factors of rows that follow from them."""

from attn_mlir.backends.gpu.structure import body, operations, yielded
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.sweep_frame import CHUNK, PANEL, PANEL_BYTES
from attn_mlir.backends.nvidia.hopper.sweep_layout import SweepLayout, varies
from attn_mlir.backends.nvidia.hopper.sweep_read import Sweep
from attn_mlir.mlir import ir


def bind_sums(core: Core, sweep: Sweep, op: ir.Operation, sums: list[str]) -> None:
    """Makes the sums of log decays that a map reads at its arguments stand for expressions."""
    arguments = list(body(op).arguments)
    for inner in operations(body(op)):
        if inner.name == "tensor.extract" and inner.operands[0] == sweep.prefix:
            core.scalars.bind(inner.results[0], sums[arguments.index(inner.operands[1])])


class SweepProducer:
    """Prints what the producer warp does for one chunk."""

    def __init__(self, core: Core, sweep: Sweep, layout: SweepLayout) -> None:
        self._core, self._sweep, self._layout = core, sweep, layout

    def chunk(self) -> None:
        """Fills a stage."""
        core, writer, layout = self._core, self._core.writer, self._layout
        stages = layout.stages
        writer.line(f"const int stage = number % {stages};")
        writer.line(*layout.addresses(), "const uint32_t full = shared + kFull + 8 * stage;")
        writer.line(f"if (number >= {stages}) attn::barrier_wait(shared + kFree + 8 * stage, (number / {stages} & 1) ^ 1);")
        row = core.value(self._sweep.begin)
        places = {name: [core.value(v) for v in list(tile.source.load.operands)[1:3]] for name, tile in layout.tiles.items()}
        columns = {
            name: core.value(tile.source.view.column) if tile.source.view.column is not None else "0" for name, tile in layout.tiles.items()
        }
        with writer.block("if (attn::elect_one())"):
            writer.line(f"attn::barrier_arrive_expect(full, {layout.loaded_bytes});")
            for name, tile in layout.tiles.items():
                descriptor = core.arguments.descriptor(tile.source.view.argument, PANEL, CHUNK)
                batch, head = places[name]
                for panel in range(tile.panels):
                    to = f"at + {tile.offset + panel * PANEL_BYTES}"
                    first = f"{columns[name]} + {panel * PANEL}" if columns[name] != "0" else str(panel * PANEL)
                    writer.line(f"attn::tma_load({to}, {descriptor}, full, {first}, {row}, {head}, {batch});")
        self._rows()
        writer.line("attn::warp_sync();", "attn::warp_arrive(full, lane == 0);")

    def _rows(self) -> None:
        """Two rows a lane: sums of log decays and factors."""
        core, writer, sweep = self._core, self._core.writer, self._sweep
        if sweep.steps is not None:
            steps = [self._row_value(sweep.steps, f"(2 * lane + {e})", None) for e in range(2)]
            first, second = (core.names.fresh(name) for name in ("even", "odd"))
            writer.line(f"const float {first} = {steps[0]}, {second} = {steps[1]};")
            after = core.names.fresh("sum")
            writer.line(f"const float {after} = attn::sum_of_lanes_before({first} + {second});")
            sums = [f"({after} - {second})", after]
            if sweep.total is not None:
                last = core.names.fresh("last")
                writer.line(f"const float {last} = __shfl_sync(0xffffffffu, {after}, 31);")
                core.scalars.bind(sweep.total, last)
            self._store("sums", sums)
        else:
            sums = [None, None]
        rows = [f"(2 * lane + {e})" for e in range(2)]
        right = [self._product([*sweep.k.factors, *sweep.v.factors], row) for row in rows]
        scaled = [("enter", sweep.enter, right)]
        factors = {"right": right}
        if sweep.rows is not None:
            factors["left"] = [self._product(sweep.rows.q.factors, row) for row in rows]
            scaled.insert(0, ("leave", sweep.rows.leave, factors["left"]))
        for name, op, each in scaled:
            values = [self._row_value(op, row, of_row) for row, of_row in zip(rows, sums, strict=True)]
            self._store(name, [f"{value} * {factor}" if factor else value for value, factor in zip(values, each, strict=True)])
        for name in ("left", "right"):
            if name in self._layout.rows:
                self._store(name, [str(value) for value in factors[name]])

    def _row_value(self, op: ir.Operation, row: str, sums: str | None) -> str:
        """The value of a map of rank 1 for a row."""
        core = self._core
        with core.scope(None):
            (index,) = body(op).arguments
            core.scalars.bind(index, row)
            if sums is not None:
                bind_sums(core, self._sweep, op, [sums])
            return core.value(yielded(body(op))[0])

    def _product(self, factors: list[ir.Value], row: str) -> str:
        """The product of factors of a row; empty without factors."""
        core, texts = self._core, []
        for value in factors:
            with core.scope(None):
                self._bind_row(value, row)
                texts.append(core.value(value))
        return " * ".join(texts)

    def _bind_row(self, value: ir.Value, row: str) -> None:
        if varies(value):
            block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
            self._core.scalars.bind(next(iter(block.arguments)), row)

    def _store(self, name: str, values: list[str]) -> None:
        self._core.writer.line(f"attn::store_shared2(rows + {self._layout.rows[name]} + 8 * lane, {values[0]}, {values[1]});")
