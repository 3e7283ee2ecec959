"""What is known about the sign of an expression; the base of every rule that pulls a factor out of max, sqrt or log."""

from dataclasses import dataclass, field

from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.derivation.row import Row
from attn_mlir.passes.order import deepest_first

POSITIVE, NONNEGATIVE, UNKNOWN = 2, 1, 0


@dataclass(eq=False)
class Signs:
    """Sign of expressions over one row with at least one key. Nothing is assumed about scores and parameters."""

    row: Row
    _memo: dict[Expr, int] = field(default_factory=dict)

    def positive(self, node: Expr) -> bool:
        return self.of(node) == POSITIVE

    def nonnegative(self, node: Expr) -> bool:
        return self.of(node) >= NONNEGATIVE

    def of(self, node: Expr) -> int:
        for n in deepest_first(node, self._memo, self._below):
            self._memo[n] = self._of(n)
        return self._memo[node]

    def _below(self, n: Expr) -> tuple[Expr, ...]:
        return (self.row.reductions[int(n.attr)].value,) if n.op == "red" else n.args  # type: ignore[call-overload]

    def _of(self, n: Expr) -> int:
        if n.is_const:
            value = float(n.attr)  # type: ignore[arg-type]
            return POSITIVE if value > 0 else NONNEGATIVE if value == 0 else UNKNOWN
        if n.op == "red":
            return self.of(self.row.reductions[int(n.attr)].value)  # type: ignore[call-overload]
        match n.op:
            case "math.exp" | "math.exp2" | "math.cosh":
                return POSITIVE
            case "math.absf":
                return max(NONNEGATIVE, self.of(n.args[0]))
            case "arith.mulf" if n.args[0] is n.args[1]:
                return max(NONNEGATIVE, self.of(n.args[0]))
            case "arith.mulf" | "arith.divf" | "arith.minimumf":
                return min(self.of(n.args[0]), self.of(n.args[1]))
            case "arith.maximumf":
                return max(self.of(n.args[0]), self.of(n.args[1]))
            case "arith.addf":
                x, y = self.of(n.args[0]), self.of(n.args[1])
                return UNKNOWN if UNKNOWN in (x, y) else max(x, y)
            case "math.sqrt" | "math.rsqrt" | "math.tanh":
                return self.of(n.args[0])
            case "arith.select":
                return min(self.of(n.args[1]), self.of(n.args[2]))
            case "math.powf":
                exponent = n.args[1].attr if n.args[1].is_const else None
                even = isinstance(exponent, float) and exponent % 2 == 0
                return max(NONNEGATIVE, self.of(n.args[0])) if even else self.of(n.args[0])
        return UNKNOWN
