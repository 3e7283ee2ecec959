"""The state of a scan in registers: where it comes from and where it goes."""

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.scan_common import ATOM, ScanFrame
from attn_mlir.backends.nvidia.hopper.scan_patterns import view_of
from attn_mlir.mlir import ir


class StatePrinter:
    """In registers: `state[4 * c + 2 * h + e]`, of column `column + 8 * c + e` of k and `row + 8 * h` of the warpgroup's columns of v."""

    def __init__(self, core: Core, scan: ScanFrame) -> None:
        self._core, self._scan = core, scan

    def declare(self) -> None:
        """Zeros, or the initial state."""
        writer, initial = self._core.writer, self._scan.initial
        count = self._scan.keys // 2
        writer.line(f"float state[{count}];")
        if initial is None:
            with writer.unrolled("c", count):
                writer.line("state[c] = 0.0f;")
            return
        with self._core.scope(""):
            self._each(self._place(list(initial.operands)[:4]), "{register} = {element};")

    def final(self) -> None:
        """Stores the state after the scan."""
        if self._scan.final is not None:
            self._store(self._scan.final)

    def keep(self, before: bool) -> None:
        """Stores the state at a boundary, if this is where the kernel does: before or after a chunk's update."""
        scan, core = self._scan, self._core
        if scan.states is None or (scan.states.operands[0] == scan.state) != before:
            return
        if scan.branch is None:
            self._store(scan.states)
            return
        with core.scope(f"if ({core.value(scan.branch.operands[0])})"):
            self._store(scan.states)

    def _store(self, op: ir.Operation) -> None:
        """Two columns at a time where they are neighbours in memory."""
        core, writer = self._core, self._core.writer
        with core.scope(""):
            strides = self._place(list(op.operands)[1:5])
            single = "{element} = {register};"
            if not self._scan.transposed:
                self._each(strides, single)
                return
            aligned = f"(reinterpret_cast<uintptr_t>(place) % 8 | {strides[1]} % 2) == 0"
            with core.scope(f"if ({strides[0]} == 1 && {aligned})"):
                with core.unrolled("c", self._scan.keys // 8), core.unrolled("h", 2):
                    pair = "make_float2(state[4 * c + 2 * h], state[4 * c + 2 * h + 1])"
                    writer.line(f"*reinterpret_cast<float2 *>(place + 8 * c + 8 * h * {strides[1]}) = {pair};")
            with core.scope("else"):
                self._each(strides, single)

    def _place(self, at: list[ir.Value]) -> tuple[str, str]:
        """Declares `place`, where this thread's first element is in a tensor of states at (batch, head, row); its strides along k and v."""
        core, view = self._core, view_of(at[0])
        batch, head, row = (core.value(value) for value in at[1:])
        first = core.value(view.column) if view.column is not None else "0"
        strides = [core.arguments.stride(view.argument, dim) for dim in range(4)]
        along_keys, along_values = strides[2:][:: -1 if self._scan.transposed else 1]
        values = f"warpgroup * {ATOM} + row"
        indices = (
            [f"({row} + {values})", f"({first} + column)"] if self._scan.transposed else [f"({row} + column)", f"({first} + {values})"]
        )
        core.writer.line(f"auto *const place = &{core.arguments.element(view.argument, [batch, head, *indices])};")
        return along_keys, along_values

    def _each(self, strides: tuple[str, str], statement: str) -> None:
        """A statement for each element of the state: `{register}` and its `{element}` in memory."""
        core = self._core
        with core.unrolled("c", self._scan.keys // 8), core.unrolled("h", 2), core.unrolled("e", 2):
            element = f"place[(8 * c + e) * {strides[0]} + 8 * h * {strides[1]}]"
            core.writer.line(statement.format(register="state[4 * c + 2 * h + e]", element=element))
