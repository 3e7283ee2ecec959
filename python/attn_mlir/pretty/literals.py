"""Texts of types, constants and attributes."""

import math
import re
from typing import Any

import numpy as np

from attn_mlir.mlir import ir

IMPLIED = ("index", "i1", "f32")
"""Types of scalars that are not written."""
_INTEGER = re.compile(r"(-?\b\d+) : i(?:64|32)\b")
_ARRAY = re.compile(r"array<i\d+(?:: )?([^>]*)>")
_STRIDED = re.compile(r", strided<\[[?, ]*\](?:, offset: \?)?>")
_HIDDEN = frozenset({"operandSegmentSizes", "resultSegmentSizes", "sym_name"})
_USUAL = re.compile(r"#\w+\.(?:fastmath|overflow)<none>")
_FLAGS = re.compile(r"#\w+\.(?:fastmath|overflow)<(.*)>")
_FLOATS: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def type_text(type_: ir.Type) -> str:
    """A type without what readers can do without: the word tensor, strides that are all unknown, quotes and types of numbers."""
    text = _INTEGER.sub(r"\1", _STRIDED.sub("", str(type_))).replace('"', "")
    if isinstance(type_, ir.RankedTensorType) and type_.rank:
        shape, comma, encoding = text.removeprefix("tensor<").removesuffix(">").partition(", ")
        return f"{shape} {encoding}" if comma else shape
    return text


def shown_type(type_: ir.Type) -> str:
    """`: type` where it is written, else nothing."""
    return "" if str(type_) in IMPLIED else f": {type_text(type_)}"


def constant_text(value: ir.Attribute) -> str:
    """A scalar constant: the shortest decimal that is this number in its type."""
    if isinstance(value, ir.BoolAttr):
        return "true" if value.value else "false"
    if isinstance(value, ir.IntegerAttr):
        return str(value.value) if str(value.type) != "i1" else ("true" if value.value else "false")
    if isinstance(value, ir.FloatAttr):
        return _float(float(value.value), str(value.type))
    return attribute_text(value)


def _float(number: float, kind: str) -> str:
    if math.isnan(number) or math.isinf(number):
        return "nan" if math.isnan(number) else f"{'-' * (number < 0)}inf"
    return repr(float(str(_FLOATS.get(kind, np.float32)(number))))


def attribute_text(value: ir.Attribute) -> str:
    """An attribute without the types of its integers."""
    if isinstance(value, ir.UnitAttr):
        return ""
    text = _FLAGS.sub(r"\1", str(value))
    return _ARRAY.sub(lambda found: f"[{found[1]}]", _INTEGER.sub(r"\1", text))


def attributes_of(op: ir.Operation, *without: str) -> list[tuple[str, str]]:
    """Names and texts of the attributes of an op that say something, by name; a unit attribute has no text."""
    names = sorted(op.attributes[number].name for number in range(len(op.attributes)))
    shown = [name for name in names if name not in _HIDDEN and name not in without and not _USUAL.fullmatch(str(op.attributes[name]))]
    return [(name, attribute_text(op.attributes[name])) for name in shown]


def in_words(attributes: list[tuple[str, str]]) -> str:
    """Attributes as `name = text`, separated by commas."""
    return ", ".join(f"{name} = {text}" if text else name for name, text in attributes)
