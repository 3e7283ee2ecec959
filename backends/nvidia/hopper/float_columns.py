"""Positions of columns as floats, in maps over tiles in registers."""

from attn_mlir.backends.gpu.structure import maker
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.mlir import ir

_I, _J = frozenset({0}), frozenset({1})


class FloatColumns:
    """The places where a map takes its column as an f32, and what is linear in it: a conversion costs as much as an exponential, so that
    of the thread's first column is made once, and an element adds a literal to it.
    """

    def __init__(self, core: Core, block: ir.Block, depends: dict[ir.Value, frozenset[int]]) -> None:
        self._core, self._block, self._depends = core, block, depends
        self._values = float_positions(block)
        self._texts: dict[ir.Value, str] = {}

    def declare(self) -> None:
        """Prints what is computed before the loop over columns."""
        if not self._values:
            return
        name = self._core.names.fresh("column_float")
        self._core.writer.line(f"const float {name} = (float)column;")
        self._texts = {value: f"({name} + (float)(8 * c + e))" for value in self._values}
        self._lines(name)

    def bind(self) -> None:
        """Makes the texts stand for their values; `c`, `e` and, for what depends on the row, `h` are in scope where these are printed."""
        for value, text in self._texts.items():
            self._core.scalars.bind(value, text)

    def _lines(self, column: str) -> None:
        """u j, or u j + t for t of the row: a value at this thread's first column, and one multiply-add with a literal for each element."""
        core = self._core
        for view in self._block.operations:
            op = view.operation
            if op.name not in ("math.fma", "arith.mulf") or not {*self._values} & {*list(op.operands)[:2]}:
                continue
            a, b, *rest = op.operands
            u = b if a in self._values else a
            if self._depends.get(u, frozenset()) or any(self._depends.get(t, frozenset()) != _I for t in rest):
                continue
            slope = core.scalars.emit(u)
            if rest:
                start = core.names.fresh("of_row")
                core.writer.line(f"float {start}[2];")
                with core.unrolled("h", 2):
                    core.writer.line(f"{start}[h] = fmaf({slope}, {column}, {core.scalars.emit(rest[0])});")
                start = f"{start}[h]"
            else:
                start = core.names.fresh("of_column")
                core.writer.line(f"const float {start} = {slope} * {column};")
            self._texts[op.results[0]] = f"fmaf({slope}, (float)(8 * c + e), {start})"


def float_positions(block: ir.Block) -> list[ir.Value]:
    """Where a map takes its second index as an f32."""
    found = []
    for view in block.operations:
        cast = maker(view.operation.operands[0]) if view.operation.name == "arith.sitofp" else None
        if cast is not None and cast.name == "arith.index_cast" and cast.operands[0] == block.arguments[1]:
            found.append(view.operation.results[0])
    return [value for value in found if isinstance(value.type, ir.F32Type)]
