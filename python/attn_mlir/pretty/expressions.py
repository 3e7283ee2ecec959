"""Scalar ops as infix expressions: operators with the precedence that Python gives them, functions for the rest."""

from collections.abc import Callable, Sequence

from attn_mlir.mlir import ir
from attn_mlir.pretty.literals import attributes_of, constant_text, in_words, type_text

SELECT, COMPARE, OR, XOR, AND, SHIFT, ADD, MUL, UNARY, ATOM = range(10)
"""Precedences, the loosest first."""

Read = Callable[[ir.Value, int], str]
"""The text of a value, in parentheses where it binds less tightly than a precedence."""

_OPERATORS = {
    "arith.addf": ("+", ADD), "arith.addi": ("+", ADD), "arith.subf": ("-", ADD), "arith.subi": ("-", ADD),
    "arith.mulf": ("*", MUL), "arith.muli": ("*", MUL), "arith.divf": ("/", MUL), "arith.divsi": ("/", MUL),
    "arith.divui": ("/u", MUL), "arith.floordivsi": ("//", MUL), "arith.remsi": ("%", MUL), "arith.remui": ("%u", MUL),
    "arith.remf": ("%", MUL), "arith.andi": ("&", AND), "arith.ori": ("|", OR), "arith.xori": ("^", XOR),
    "arith.shli": ("<<", SHIFT), "arith.shrsi": (">>", SHIFT), "arith.shrui": (">>u", SHIFT),
}  # fmt: skip
_ASSOCIATIVE = frozenset({"arith.addi", "arith.muli", "arith.andi", "arith.ori", "arith.xori"})
_FUNCTIONS = {
    "arith.maximumf": "max", "arith.minimumf": "min", "arith.maxsi": "max", "arith.minsi": "min", "arith.maxui": "maxu",
    "arith.minui": "minu", "arith.maxnumf": "maxnum", "arith.minnumf": "minnum", "arith.ceildivsi": "ceildiv",
    "arith.ceildivui": "ceildivu", "math.absf": "abs", "math.absi": "abs", "math.powf": "pow", "attn.detach": "detach",
}  # fmt: skip
_CASTS = frozenset(f"arith.{name}" for name in ("index_cast", "sitofp", "extf", "truncf", "extsi", "trunci", "fptosi"))
_UNSIGNED = frozenset(f"arith.{name}" for name in ("uitofp", "extui", "index_castui", "fptoui"))
_PREDICATES = {
    "arith.cmpi": ("==", "!=", "<", "<=", ">", ">=", "<u", "<=u", ">u", ">=u"),
    "arith.cmpf": ("", "==", ">", ">=", "<", "<=", "", "", "", "", "", "", "", "!=", "", ""),
}
_NAMED = ("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true")
_CONSTANTS = frozenset({"arith.constant", "llvm.mlir.constant"})
_READS = frozenset({"tensor.extract", "memref.load"})
_SIZES = frozenset({"tensor.dim", "memref.dim"})
_DIALECTS = ("arith.", "math.", "attn.", "index.")


def is_constant(op: ir.Operation) -> bool:
    """Whether an op is a constant that is written where it is used."""
    return op.name in _CONSTANTS and isinstance(op.attributes["value"], (ir.IntegerAttr, ir.FloatAttr, ir.BoolAttr))


def is_size(op: ir.Operation) -> bool:
    """Whether an op is a size of a tensor, `q.shape[2]`, which is written where it is used."""
    return op.name in _SIZES and not isinstance(op.operands[1].owner, ir.Block) and is_constant(op.operands[1].owner.operation)


def is_expression(op: ir.Operation) -> bool:
    """Whether an op makes one scalar of others and does nothing else; reading memory counts."""
    if len(op.results) != 1 or len(op.regions):
        return False
    type_ = op.results[0].type
    if isinstance(type_, ir.NoneType) or (isinstance(type_, ir.ShapedType) and not isinstance(type_, ir.VectorType)):
        return False
    return is_constant(op) or op.name in _READS or op.name in _SIZES or op.name.startswith(_DIALECTS)


def expression(op: ir.Operation, read: Read) -> tuple[str, int]:
    """The text of an expression, and how tightly it binds."""
    name, operands = op.name, list(op.operands)
    if is_constant(op):
        text = constant_text(op.attributes["value"])
        return text, UNARY if text.startswith("-") else ATOM
    if name in _SIZES:
        return f"{read(operands[0], ATOM)}.shape[{read(operands[1], SELECT)}]", ATOM
    if name in _READS:
        return f"{read(operands[0], ATOM)}[{_listed(operands[1:], read)}]", ATOM
    if name in _OPERATORS:
        return _infix(*_OPERATORS[name], operands, read, name in _ASSOCIATIVE)
    if name in _PREDICATES:
        number = ir.IntegerAttr(op.attributes["predicate"]).value
        sign = _PREDICATES[name][number]
        return _infix(sign, COMPARE, operands, read, False) if sign else (f"{_NAMED[number]}({_listed(operands, read)})", ATOM)
    if name == "arith.select":
        condition, yes, no = operands
        return f"{read(yes, COMPARE)} if {read(condition, COMPARE)} else {read(no, SELECT)}", SELECT
    if name == "arith.negf":
        return f"-{read(operands[0], UNARY)}", UNARY
    if name in _CASTS or name in _UNSIGNED:
        plain = name in _CASTS or str(operands[0].type) == "i1"
        return f"{type_text(op.results[0].type)}({'' if plain else 'unsigned '}{read(operands[0], SELECT)})", ATOM
    if name == "attn.reduce":
        return f"reduce_{ir.StringAttr(op.attributes['kind']).value}({_listed(operands, read)})", ATOM
    own = in_words(attributes_of(op)) if name.startswith("attn.") else ""
    parts = [_listed(operands, read), own]
    return f"{_FUNCTIONS.get(name, name.removeprefix('math.'))}({', '.join(filter(None, parts))})", ATOM


def flags(op: ir.Operation) -> str:
    """The attributes of an expression that its text does not have, in braces; most have none."""
    if op.name.startswith("attn.") or is_constant(op):
        return ""
    told = in_words(attributes_of(op, "predicate"))
    return f" {{{told}}}" if told else ""


def _infix(sign: str, precedence: int, operands: Sequence[ir.Value], read: Read, associative: bool) -> tuple[str, int]:
    tighter = precedence + 1
    left = read(operands[0], tighter if precedence == COMPARE else precedence)
    return f"{left} {sign} {read(operands[1], precedence if associative else tighter)}", precedence


def _listed(values: Sequence[ir.Value], read: Read) -> str:
    return ", ".join(read(value, SELECT) for value in values)
