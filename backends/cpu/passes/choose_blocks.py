"""Block sizes and threads that a tuner found, by the names of kernels."""

from dataclasses import dataclass

from attn_mlir.backends import fields
from attn_mlir.backends.cpu.target import host
from attn_mlir.backends.cpu.tuning.chunk_scan_facts import chunk_scan_facts
from attn_mlir.backends.cpu.tuning.model import problem_of
from attn_mlir.backends.fields import Fields
from attn_mlir.backends.tuning.facts import KernelFacts, facts_of
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all

TUNED = "cpu.tuned"
_SIZES = ("block_q", "block_kv")
_COMPUTED = ("attn.query", "attn.key", "attn.value", "attn.key_lists")
"""Where these are, factors of products do not come as they lie in memory."""


@dataclass(frozen=True)
class CpuChooseBlocks(Pass):
    """Gives functions that become kernels the `tile.blocks`, and the threads in `tile.choices`, that `cpu.tuned` has for them.

    `block_q` and `block_kv` are rows and keys of a block (in kernels of pairs, keys and rows), or positions of a chunk and columns of v.
    Those that are not chosen are `rows` and `keys`, or what the op and v have; `tile-rows` and `tile-keys` where products use matrix tiles,
    so that what is packed for these serves more products. A chunk of a single position stays one. Without `cpu.tuned` and tiles a module
    stays as it is.
    """

    name = "cpu-choose-blocks"
    rows: int = 32
    keys: int = 64
    tile_rows: int = 64
    tile_keys: int = 128

    def run(self, module: ir.Operation) -> bool:
        try:
            tuned = fields.tuned_in(module, TUNED)
            return all(self._choose(function, tuned) for function in find_all(module, "func.func")) if tuned or host().tiles else True
        except ValueError as error:
            module.location.emit_error(f"{self.name}: {error}")
            return False

    def _choose(self, function: ir.Operation, tuned: dict[str, Fields]) -> bool:
        choices = tuned.get(fields.tuned_name(function)) or {}
        open_ = "tile.blocks" not in function.attributes and (choices or host().tiles)
        facts = facts_of(function, chunk_scan_facts) if open_ else None
        if facts is None or facts.grid == "elements":
            return True
        tiles = host().tiles and _fit_tiles(function, facts)
        rows, keys = (self.tile_rows, self.tile_keys) if tiles else (self.rows, self.keys)
        if tiles:
            function.attributes["tile.blocks"] = ir.DenseI64ArrayAttr.get([rows, keys], function.context)
        if not choices:
            return True
        problem = problem_of(facts, choices, host())
        if problem:
            function.location.emit_error(f"{self.name}: {problem}")
            return False
        if any(name in choices for name in _SIZES):
            usual = (rows, keys) if facts.scan is None else (facts.scan.chunk, facts.scan.values)
            first, second = (int(choices.get(name, size)) for name, size in zip(_SIZES, usual, strict=True))
            for chunk in find_all(function, "attn.chunk"):
                given = chunk.attributes["chunk"]
                if ir.IntegerAttr(given).value > 1:
                    chunk.attributes["chunk"] = ir.IntegerAttr.get(given.type, first)
            function.attributes["tile.blocks"] = ir.DenseI64ArrayAttr.get([first, second], function.context)
        if "threads" in choices:
            with function.context:
                function.attributes[fields.CHOICES] = fields.write({"threads": choices["threads"]})
        return True


def _fit_tiles(function: ir.Operation, facts: KernelFacts) -> bool:
    """Whether products can use matrix tiles, as `schedule` finds in the end: of whole ones of bf16, whose factors nothing computes."""
    whole = not any(size % 32 for size in (*facts.scores, *facts.spread)) and not any(size % 16 for size in facts.sums)
    return facts.element == "bf16" and bool(facts.scores) and whole and not find_all(function, *_COMPUTED)


def threads_of(kernel: ir.Operation) -> int:
    """How many threads a kernel is to have at most; 0: as many as there are."""
    return int(fields.read(kernel, fields.CHOICES).get("threads", 0))
