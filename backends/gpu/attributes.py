"""Attributes of kernels: what their programs run over, and dictionaries of numbers and words, a schedule or choices of a tuner."""

from collections.abc import Mapping

from attn_mlir.mlir import ir

Fields = dict[str, int | str]

SCHEDULE = "tile.schedule"
CHOICES = "tile.choices"


def grid_kind(kernel: ir.Operation) -> str:
    """What the programs of a kernel run over: "rows", "pairs", "elements" or "chunks"."""
    facts = ir.DictAttr(kernel.attributes["tile.kernel"])
    return ir.StringAttr(facts["grid"]).value if "grid" in facts else "rows"


def write(fields: Mapping[str, int | str]) -> ir.DictAttr:
    """The attribute that holds them; needs an active context."""
    i64 = ir.IntegerType.get_signless(64)
    return ir.DictAttr.get({n: ir.IntegerAttr.get(i64, int(v)) if isinstance(v, int) else ir.StringAttr.get(v) for n, v in fields.items()})


def read(op: ir.Operation, name: str) -> Fields:
    """What attribute `name` of an op holds; empty without it. Raises ValueError for other things than numbers and words."""
    if name not in op.attributes:
        return {}
    fields: Fields = {}
    for item in ir.DictAttr(op.attributes[name]):
        value = item.attr
        if isinstance(value, ir.IntegerAttr):
            fields[item.name] = value.value
        elif isinstance(value, ir.StringAttr):
            fields[item.name] = value.value
        else:
            raise ValueError(f"'{name}' holds numbers and words, got {item.name} = {value}")
    return fields
