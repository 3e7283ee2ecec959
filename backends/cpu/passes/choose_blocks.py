"""Block sizes and threads that a tuner found, by the names of kernels."""

from dataclasses import dataclass

from attn_mlir.backends import fields
from attn_mlir.backends.cpu.target import host
from attn_mlir.backends.cpu.tuning.model import problem_of
from attn_mlir.backends.cpu.tuning.sweep_facts import sweep_facts
from attn_mlir.backends.fields import Fields
from attn_mlir.backends.tuning.facts import facts_of
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all

TUNED = "cpu.tuned"
_SIZES = ("block_q", "block_kv")


@dataclass(frozen=True)
class CpuChooseBlocks(Pass):
    """Gives functions that become kernels the `tile.blocks`, and the threads in `tile.choices`, that `cpu.tuned` has for them.

    `block_q` and `block_kv` are rows and keys of a block (in kernels of pairs, keys and rows), or positions of a chunk and columns of v.
    Those that are not chosen are `rows` and `keys`, or what the op and v have. A chunk of a single position stays one. A module without
    `cpu.tuned` stays as it is.
    """

    name = "cpu-choose-blocks"
    rows: int = 32
    keys: int = 64

    def run(self, module: ir.Operation) -> bool:
        try:
            tuned = fields.tuned_in(module, TUNED)
            return all(self._choose(function, tuned) for function in find_all(module, "func.func")) if tuned else True
        except ValueError as error:
            module.location.emit_error(f"{self.name}: {error}")
            return False

    def _choose(self, function: ir.Operation, tuned: dict[str, Fields]) -> bool:
        choices = tuned.get(fields.tuned_name(function))
        facts = facts_of(function, sweep_facts) if choices and "tile.blocks" not in function.attributes else None
        if not choices or facts is None or facts.grid == "elements":
            return True
        problem = problem_of(facts, choices, host())
        if problem:
            function.location.emit_error(f"{self.name}: {problem}")
            return False
        if any(name in choices for name in _SIZES):
            usual = (self.rows, self.keys) if facts.sweep is None else (facts.sweep.chunk, facts.sweep.values)
            rows, columns = (int(choices.get(name, size)) for name, size in zip(_SIZES, usual, strict=True))
            for chunk in find_all(function, "attn.chunk"):
                given = chunk.attributes["chunk"]
                if ir.IntegerAttr(given).value > 1:
                    chunk.attributes["chunk"] = ir.IntegerAttr.get(given.type, rows)
            function.attributes["tile.blocks"] = ir.DenseI64ArrayAttr.get([rows, columns], function.context)
        if "threads" in choices:
            with function.context:
                function.attributes[fields.CHOICES] = fields.write({"threads": choices["threads"]})
        return True


def threads_of(kernel: ir.Operation) -> int:
    """How many threads a kernel is to have at most; 0: as many as there are."""
    return int(fields.read(kernel, fields.CHOICES).get("threads", 0))
