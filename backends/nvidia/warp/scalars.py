"""Rules of numbers: every `arith` and `math` op is a constant of C++, printed where it stands."""

import re

from attn_mlir.backends.gpu.scalar_bounds import fits_int
from attn_mlir.backends.gpu.scalar_printer import ScalarPrinter as Scalar
from attn_mlir.backends.gpu.scalar_printer import is_wrapped
from attn_mlir.backends.nvidia.warp.printer import Rule, WarpPrinter
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_HINTS = {"i1": "is", "index": "n", "i32": "n", "i64": "n", "f32": "x", "f16": "x", "bf16": "x"}
_ATOM = re.compile(r"[\w.]+(\[[^\[\]]*\])?")


def _scalar(printer: WarpPrinter, op: ir.Operation, *operands: str) -> None:
    result = op.results[0]
    if op.name == "arith.truncf" and _rounded_later(result):
        return
    text = Scalar(op, [operand(text) for text in operands], printer.context).text()
    if op.name == "arith.constant":
        printer.printed[result] = text
        return
    printer.define(result, text[1:-1] if is_wrapped(text) else text, _HINTS.get(str(result.type), "x"))


def _unsigned(printer: WarpPrinter, op: ir.Operation, a: str, b: str) -> None:
    """Quotients and remainders of numbers that are not negative, in 32 bits where these suffice; a divisor 0 counts as 1."""
    ranges = [printer.context.ranges.of(value) for value in op.operands]
    if not all(low >= 0 and fits_int((low, high)) for low, high in ranges):
        _scalar(printer, op, a, b)
        return
    divisor = f"(unsigned){operand(b)}" if ranges[1][0] > 0 else f"max((unsigned){operand(b)}, 1u)"
    text = f"(int)((unsigned){operand(a)} {'/' if op.name == 'arith.divui' else '%'} {divisor})"
    printer.define(op.results[0], text, "n")


def _rounded_later(value: ir.Value) -> bool:
    """Whether only the yield of a map asks for it, which packs and rounds two elements at once."""
    return all(use.owner.operation.name == "warp.yield" for use in value.uses)


def operand(text: str) -> str:
    """An expression that may stand beside any operator."""
    return text if _ATOM.fullmatch(text) or is_wrapped(text) else f"({text})"


def _dim(printer: WarpPrinter, op: ir.Operation, source: ir.Value, axis: str) -> None:
    shape = ir.MemRefType(source.type)
    static = not shape.is_dynamic_dim(int(axis))
    printer.printed[op.results[0]] = str(shape.shape[int(axis)]) if static else printer.arguments.size(source, int(axis))


def _view(printer: WarpPrinter, op: ir.Operation, source: ir.Value) -> None:
    """Accesses look through a view: see `Arguments`."""
    printer.printed[op.results[0]] = op.results[0]  # pyright: ignore


def _element(printer: WarpPrinter, op: ir.Operation, memory: object, *places: str) -> None:
    """An element of a tensor in global memory, or, in `memory.RULES`, a number in shared memory."""
    if not isinstance(memory, ir.Value):
        raise UnsupportedError(f"warp: '{op.name}' reads a tensor of the kernel or numbers in shared memory ({source_line(op.location)})")
    printer.define(op.results[0], printer.arguments.element(memory, [operand(p) for p in places]), "of_memory")


def _range(printer: WarpPrinter, op: ir.Operation, source: ir.Value, *box: str) -> None:
    """Smallest and largest element of a box of a captured tensor; the lanes of each warp share the work."""
    rank, name = len(box) // 2, printer.names.fresh("range")
    printer.line(f"attn::Range {name};")
    offset, loops = "0", ""
    for dim in range(rank - 1):
        at = printer.names.fresh("at")
        loops += f"for (int {at} = {box[dim]}; {at} < {box[rank + dim]}; ++{at}) "
        offset += f" + {at} * {printer.arguments.stride(source, dim)}"
    stride = printer.arguments.stride(source, rank - 1)
    printer.line(f"{loops}{name}.scan({printer.arguments.pointer(source)} + {offset}, {stride}, {box[rank - 1]}, {box[-1]});")
    printer.line(f"{name}.combine();")
    for result, member in zip(op.results, ("lowest", "highest"), strict=True):
        printer.define(result, f"({printer.type_of(result)}){name}.{member}", "least" if member == "lowest" else "most")


RULES: dict[str, Rule] = {
    "attn.range": _range,
    "arith.*": _scalar,
    "arith.divui": _unsigned,
    "arith.remui": _unsigned,
    "math.*": _scalar,
    "memref.dim": _dim,
    "memref.transpose": _view,
}
read_global = _element
