"""Splits a step into stages that each need one pass over a tile of scores.

A value of the step varies along the row (it depends on the score) or is the same for the whole row. A reduction ends a
stage: what depends on its result belongs to the next one. Each stage becomes two `tile.map`s: one over rows for the values
that are the same along the row, one over the tile for the others.
"""

from dataclasses import dataclass, field

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import scores_in


@dataclass
class Stage:
    """Ops of one stage, in program order."""

    row_ops: list[ir.Operation] = field(default_factory=list)
    tile_ops: list[ir.Operation] = field(default_factory=list)
    reductions: list[ir.Operation] = field(default_factory=list)


@dataclass
class StepPlan:
    """The stages of a step, and where each value is computed."""

    stages: list[Stage]
    varies: dict[ir.Value, bool]
    stage: dict[ir.Value, int]
    results: list[ir.Value]

    def stored(self) -> dict[int, list[ir.Value]]:
        """Varying floats that a later stage or the weights need: kept as tiles, by the stage that computes them."""
        kept: dict[int, list[ir.Value]] = {}
        for number, stage in enumerate(self.stages):
            for op in [*stage.tile_ops, *stage.reductions]:
                for value in op.operands:
                    home = self.stage.get(value)
                    if home is not None and home < number and self.varies[value] and _is_float(value):
                        kept.setdefault(home, [])
                        if value not in kept[home]:
                            kept[home].append(value)
        return kept


def plan_step(block: ir.Block) -> StepPlan:
    """Assigns every op of a step's block to a stage."""
    scores = scores_in(block)
    varies: dict[ir.Value, bool] = {argument: position < scores for position, argument in enumerate(block.arguments)}
    stage: dict[ir.Value, int] = dict.fromkeys(block.arguments, 0)
    stages: list[Stage] = [Stage()]
    operations = [op.operation for op in block.operations]
    for op in operations[:-1]:
        inside = [value for value in op.operands if value in stage]
        if not inside and op.name != "attn.reduce":
            continue  # A constant, or made of constants: copied to wherever it is used.
        number = max((stage[value] for value in inside), default=0)
        row_varies = any(varies[value] for value in inside)
        while len(stages) <= number + 1:
            stages.append(Stage())
        if op.name == "attn.reduce":
            stages[number].reductions.append(op)
            number, row_varies = number + 1, False
        else:
            (stages[number].tile_ops if row_varies else stages[number].row_ops).append(op)
        for result in op.results:
            stage[result], varies[result] = number, row_varies
    return StepPlan(stages, varies, stage, list(operations[-1].operands))


def _is_float(value: ir.Value) -> bool:
    return isinstance(value.type, (ir.F32Type, ir.F64Type))
