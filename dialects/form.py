"""The form of an op: its declared numbers of operands, results and regions, and its attributes.

MLIR runs an op's own verifier before it checks the declaration, so that a verifier could meet an op without the operand
it looks at. `harden` puts the check of the form first, and keeps Python exceptions out of MLIR.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from attn_mlir.dialects.verify import check
from attn_mlir.mlir import ext, ir


def harden(cls: type) -> None:
    """Makes the verifiers of the `ext` operation `cls` total: any IR gives a result, never an exception."""
    if "verify_form" in vars(cls):
        return
    own = getattr(cls, "verify_invariants", None)
    region = getattr(cls, "verify_region_invariants", None)
    setattr(cls, "verify_form", verify_form)
    setattr(cls, "verify_invariants", _total(lambda op: verify_form(op) and (own is None or own(op))))
    if region is not None:
        setattr(cls, "verify_region_invariants", _total(region))


def verify_form(op: Any) -> bool:
    """Checks operands, results, attributes and regions against the op's declaration."""
    return _fits(op.operation, *_declared(type(op))) or _verify_fields(op)


@cache
def _declared(cls: Any) -> tuple[Any, ...]:
    """Least and largest number and segments (0: none) of operands, then of results; attributes with their classes; how many regions."""
    numbers: list[tuple[float, float, int]] = []
    for kind in (ext.OperandDef, ext.ResultDef):
        fields = [field for field in cls._fields if isinstance(field, kind)]
        variadic = sum(field.variadicity != ext.Variadicity.single for field in fields)
        segments = len(fields) if variadic > 1 else 0
        numbers.append((len(fields), len(fields), 0) if not variadic else (len(fields) - 1, float("inf"), segments))
    attributes = [(field.name, field.constraint) for field in cls._fields if isinstance(field, ext.AttributeDef)]
    classes = tuple((name, kind if kind is not Any and isinstance(kind, type) else object) for name, kind in attributes)
    return (*numbers, classes, sum(isinstance(field, ext.RegionDef) for field in cls._fields))


def _fits(operation: ir.Operation, *declared: Any) -> bool:
    """Whether an op has its form, as nearly all have: found without a message for each rule."""
    operands, results, classes, regions = declared
    if not _counted(operation, "operand", len(operation.operands), operands):
        return False
    if not _counted(operation, "result", len(operation.results), results):
        return False
    attributes = operation.attributes
    return (
        len(operation.regions) == regions
        and all(name in attributes and isinstance(attributes[name], kind) for name, kind in classes)
        and not operation.successors
    )


def _counted(operation: ir.Operation, what: str, got: int, declared: tuple[float, float, int]) -> bool:
    """Whether an op has as many operands or results as declared, and segments that split them."""
    least, most, segments = declared
    return _splits(operation, what, segments, got) if segments else least <= got <= most


def _splits(operation: ir.Operation, what: str, segments: int, got: int) -> bool:
    name = f"{what}SegmentSizes"
    sizes: Any = operation.attributes[name] if name in operation.attributes else None
    if not isinstance(sizes, ir.DenseI32ArrayAttr) or len(sizes) != segments:
        return False
    numbers = list(sizes)
    return min(numbers) >= 0 and sum(numbers) == got


def _verify_fields(op: Any) -> bool:
    """The same rule by rule, with a message for the one that is broken."""
    fields, operation = op._fields, op.operation
    for kind, values, what in ((ext.OperandDef, operation.operands, "operand"), (ext.ResultDef, operation.results, "result")):
        if not _verify_values(op, [f for f in fields if isinstance(f, kind)], len(values), what):
            return False
    for field in fields:
        if isinstance(field, ext.AttributeDef) and not _verify_attribute(op, field.name, field.constraint):
            return False
    regions = sum(isinstance(field, ext.RegionDef) for field in fields)
    if not check(op, len(operation.regions) == regions, f"has {_count(regions, 'region')}, got {len(operation.regions)}"):
        return False
    return check(op, not operation.successors, "has no successors")


def _verify_values(op: Any, fields: Sequence[Any], got: int, what: str) -> bool:
    variadic = sum(field.variadicity != ext.Variadicity.single for field in fields)
    if variadic == 0:
        return check(op, got == len(fields), f"has {_count(len(fields), what)}, got {got}")
    if variadic == 1:
        return check(op, got >= len(fields) - 1, f"has at least {_count(len(fields) - 1, what)}, got {got}")
    name = f"{what}SegmentSizes"
    fits = _splits(op.operation, what, len(fields), got)
    return check(op, fits, f"needs `{name}` to split its {_count(got, what)} into {', '.join(field.name for field in fields)}")


def _verify_attribute(op: Any, name: str, constraint: Any) -> bool:
    attributes = op.operation.attributes
    if not check(op, name in attributes, f"needs its attribute `{name}`"):
        return False
    fits = constraint is Any or not isinstance(constraint, type) or isinstance(attributes[name], constraint)
    return check(op, fits, f"takes `{name}` as {_kind(constraint)}, got {attributes[name]}")


def _kind(constraint: Any) -> str:
    names = {ir.StringAttr: "a string", ir.IntegerAttr: "an integer", ir.ArrayAttr: "an array"}
    return names.get(constraint, getattr(constraint, "__name__", str(constraint)))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _unreadable(op: Any) -> str:
    """What is wrong where an attribute is of a kind that the bindings cannot look at, such as an array of i128, else ""."""
    attributes = op.operation.attributes
    for name in [attributes[number].name for number in range(len(attributes))]:
        try:
            attributes[name]
        except TypeError:
            return f"has an attribute `{name}` of a kind that is not known here"
    return ""


def _total(rule: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def verify(op: Any) -> bool:
        try:
            return bool(rule(op))
        except Exception as error:
            return check(op, False, _unreadable(op) or f"cannot be verified: {type(error).__name__}: {error}")

    return verify
