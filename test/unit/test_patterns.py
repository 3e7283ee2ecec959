"""Tables of rules that MLIR's pattern driver applies."""

import pytest

from attn_mlir.mlir import arith, ir
from attn_mlir.passes.patterns import apply_rules

TEXT = """func.func @f(%x: f32, %y: f32) -> f32 {
  %a = arith.addf %x, %y : f32
  %b = arith.mulf %a, %y : f32
  %c = arith.addf %b, %y : f32
  return %c : f32
}"""


def test_each_op_is_replaced_once() -> None:
    """What a rule makes, at the place and the location of the op, waits for the next time."""
    with ir.Context():
        module = ir.Module.parse(TEXT)
        again = {"arith.addf": lambda op: arith.addf(op.operands[1], op.operands[0])}
        assert apply_rules(module.operation, again)
        assert "arith.addf %arg1, %arg0" in str(module)
        assert str(module).count("arith.addf") == 2
        assert not apply_rules(module.operation, {"arith.addf": lambda op: None, "arith.divf": lambda op: op.operands[0]})


def test_what_a_rule_raises_arrives() -> None:
    """No rule runs after it, and MLIR is none the wiser."""
    seen = []

    def fails(op: ir.Operation) -> ir.Value | None:
        seen.append(op.name)
        raise KeyError("not this one")

    with ir.Context():
        module = ir.Module.parse(TEXT)
        with pytest.raises(KeyError, match="not this one"):
            apply_rules(module.operation, {"arith.addf": fails, "arith.mulf": fails})
        assert len(seen) == 1 and module.operation.verify() and str(module).count("arith.addf") == 2
