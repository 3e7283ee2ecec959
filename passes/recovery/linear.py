"""Whether the end of an online program is linear in its accumulators, so that it may be applied to each weight instead."""

from dataclasses import dataclass, field

from attn_mlir.mlir import ir
from attn_mlir.passes.simplification.folding import number


@dataclass(eq=False)
class Linearity:
    """Looks at one `attn.finalize`; `culprit` is the op at which an output stops being linear."""

    accumulators: list[ir.Value]
    culprit: ir.Operation | None = None
    _known: dict[ir.Value, str] = field(default_factory=dict)

    def linear(self, value: ir.Value) -> bool:
        """True where `value` is a linear combination of the accumulators, with factors that do not hold them."""
        return self._degree(value) in ("linear", "zero")

    def free(self, value: ir.Value) -> bool:
        """True where `value` does not depend on the accumulators."""
        return self._degree(value) in ("free", "zero")

    def _degree(self, value: ir.Value) -> str:
        """ "zero", "free" of accumulators, "linear" in them, or "other"."""
        if value not in self._known:
            self._known[value] = self._find(value)
        return self._known[value]

    def _find(self, value: ir.Value) -> str:
        if value in self.accumulators:
            return "linear"
        if number(value) == 0.0:
            return "zero"
        owner = value.owner
        if isinstance(owner, ir.Block):
            return "free"
        op = owner.operation
        degrees = [self._degree(operand) for operand in op.operands]
        if all(degree in ("zero", "free") for degree in degrees):
            return "free"
        if "other" not in degrees and _keeps_linear(op.name, degrees):
            return "linear"
        self.culprit = self.culprit or op
        return "other"


def _keeps_linear(name: str, degrees: list[str]) -> bool:
    linear = ("linear", "zero")
    match name:
        case "arith.addf" | "arith.subf" | "arith.negf" | "attn.detach":
            return all(degree in linear for degree in degrees)
        case "arith.mulf":
            return "free" in degrees or "zero" in degrees
        case "arith.divf":
            return degrees[0] in linear and degrees[1] == "free"
        case "arith.select":
            return degrees[0] == "free" and all(degree in linear for degree in degrees[1:])
    return False
