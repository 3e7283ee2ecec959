"""The state of a sweep in registers: where it comes from and where it goes."""

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.sweep_forms import view_of
from attn_mlir.backends.nvidia.hopper.sweep_layout import SweepLayout
from attn_mlir.backends.nvidia.hopper.sweep_read import PANEL, Sweep
from attn_mlir.mlir import ir


class StatePrinter:
    """In registers: `state[4 * c + 2 * h + e]`, of column `column + 8 * c + e` of k and `row + 8 * h` of the warpgroup's columns of v."""

    def __init__(self, core: Core, sweep: Sweep, layout: SweepLayout) -> None:
        self._core, self._sweep, self._layout = core, sweep, layout

    def declare(self) -> None:
        """Zeros, or the initial state."""
        writer, initial = self._core.writer, self._sweep.initial
        count = self._sweep.keys // 2
        writer.line(f"float state[{count}];")
        if initial is None:
            with writer.unrolled("c", count):
                writer.line("state[c] = 0.0f;")
            return
        with self._core.scope(None):
            self._elements(list(initial.operands)[:4], "{register} = {element};")

    def final(self) -> None:
        """Stores the state after the sweep."""
        if self._sweep.final is not None:
            self._store(self._sweep.final)

    def keep(self, before: bool) -> None:
        """Stores the state at a boundary, if this is where the kernel does: before or after a chunk's update."""
        sweep, core = self._sweep, self._core
        if sweep.states is None or (sweep.states.operands[0] == sweep.state) != before:
            return
        if sweep.branch is None:
            self._store(sweep.states)
            return
        with core.scope(f"if ({core.value(sweep.branch.operands[0])})"):
            self._store(sweep.states)

    def _store(self, op: ir.Operation) -> None:
        with self._core.scope(None):
            self._elements(list(op.operands)[1:5], "{element} = {register};")

    def _elements(self, place: list[ir.Value], statement: str) -> None:
        """For each element of the state: `{register}` and its `{element}` of a tensor of states, at (batch, head, row)."""
        core, view = self._core, view_of(place[0])
        batch, head, row = (core.value(value) for value in place[1:])
        first = core.value(view.column) if view.column is not None else "0"
        keys, values = "(column + 8 * c + e)", f"(warpgroup * {PANEL} + row + 8 * h)"
        along = (values, keys) if self._sweep.transposed else (keys, values)
        indices = [batch, head, f"({row} + {along[0]})", f"({first} + {along[1]})"]
        with core.unrolled("c", self._sweep.keys // 8), core.unrolled("h", 2), core.unrolled("e", 2):
            element = core.arguments.element(view.argument, indices)
            core.writer.line(statement.format(register="state[4 * c + 2 * h + e]", element=element))
