"""Block sizes, and what else is chosen before tiling, by the facts of each kernel."""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia import blocks, thresholds
from attn_mlir.backends.nvidia.narrow_windows import PACK
from attn_mlir.backends.nvidia.target import OF_MACHINE, TARGETS
from attn_mlir.backends.nvidia.tuning.choices import choices_for, choices_in, is_synchronous
from attn_mlir.backends.nvidia.tuning.chunk_scan_facts import chunk_scan_facts
from attn_mlir.backends.nvidia.tuning.scans import is_prepared
from attn_mlir.backends.nvidia.warp import synchronous
from attn_mlir.dialects.attn.linear_gradients import interval_of
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.tiling.chunk_channels import AT_ONCE


@dataclass(frozen=True)
class NvidiaChooseBlocks(Pass):
    """Gives each function that becomes a kernel its `tile.blocks` and the `tile.choices` that its schedule follows.

    What a function has in `tile.choices` comes first, then what `nvidia.tuned` of the module has for it, then the best untuned schedule.
    An `attn.transition_scan` gets those that warpgroups can multiply.
    An `attn.chunk` gets chunks of `block_q` positions; where its key channels have decays in a form that the emitter "hopper" knows, the
    function gets `tile.decay_channels` (see `attn-tile`). `arch` and `emitter`, where given, come first in the choices of all functions.
    For chips without TMA the emitter is chosen here, too, as blocks depend on it: where the passes of the `warp` dialect form a kernel in
    their blocks, for which a copy of the module is tiled, "warp" is added to the choices, else the reason, as `unformed`.
    `transpose=false`: no blocks whose sums over keys the Hopper emitter alone makes: transposed ones.
    """

    name = "nvidia-choose-blocks"
    arch: str = ""
    emitter: str = ""
    transpose: bool = True

    def run(self, module: ir.Operation) -> bool:
        try:
            tuned = choices_in(module)
        except ValueError as error:
            module.location.emit_error(f"{self.name}: {error}")
            return False
        open_: list[tuple[ir.Operation, blocks.NvidiaFacts, Fields]] = []
        for function in find_all(module, "func.func"):
            facts = blocks.facts_of(function)
            if facts is None:
                self._choose_for_matrices(function, tuned)
                continue
            asked = {name: value for name, value in (("arch", self.arch), ("emitter", self.emitter)) if value}
            if asked:
                _add(function, asked)
            if synchronous.is_open(function, facts, tuned):
                why = synchronous.why_not(function, facts)
                if not why:
                    open_.append((function, facts, attributes.read(function, attributes.CHOICES)))
                _add(function, {synchronous.UNFORMED: why} if why else {"emitter": "warp"})
            if not self._choose(function, facts, tuned):
                return False
        refused = synchronous.refusals(module, [_name_of(function) for function, *_ in open_]) if open_ else {}
        for function, facts, own in open_:
            if _name_of(function) in refused:
                with module.context:
                    function.attributes[attributes.CHOICES] = attributes.write({**own, synchronous.UNFORMED: refused[_name_of(function)]})
                if not self._choose(function, facts, tuned):
                    return False
        return True

    def _choose_for_matrices(self, function: ir.Operation, tuned: Mapping[str, Fields]) -> None:
        """Programs of states that pass from segment to segment have the columns of a warpgroup, where these can multiply matrices."""
        for op in find_all(function, "attn.transition_scan"):
            choices = choices_for(function, tuned)
            target = TARGETS.get(self.arch or str(choices.get("arch", "sm_90a")))
            asked = {"warps", "block_q", "block_kv"} & set(choices) or not choices.get("warpgroups", 1)
            sizes = None if target is None or not target.bulk_copies or asked else blocks.blocks_of_matrices(op)
            if sizes is not None:
                function.attributes["tile.blocks"] = ir.DenseI64ArrayAttr.get(sizes, function.context)

    def _choose(self, function: ir.Operation, facts: blocks.NvidiaFacts, tuned: Mapping[str, Fields]) -> bool:
        """Chooses for a function with these facts; False after an error."""
        choices = choices_for(function, tuned)
        single = is_synchronous(choices)
        defaults = blocks.synchronous_blocks(facts) if single else blocks.default_blocks(facts)
        sizes = [choices.get(name, default) for name, default in zip(("block_q", "block_kv"), defaults, strict=True)]
        own = attributes.read(function, attributes.CHOICES)
        captures = None if single else blocks.blocks_with_captures(facts)
        brief = blocks.blocks_of_brief_pairs(facts) if captures is None and _may_choose(choices) and PACK not in own else None
        if brief == thresholds.BRIEF_PAIRS and not (self.transpose and choices.get("emitter", "hopper") == "hopper"):
            brief = None
        if captures is None and brief is None and _is_left(own):
            brief = blocks.blocks_of_quotients(facts)
        if (found := captures or brief) and not tuned and "block_q" not in own and "block_kv" not in own:
            sizes = list(found)
            if brief == thresholds.NARROW_PAIRS and "key_sums" not in choices:
                choices["key_sums"] = "auto"
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            function.location.emit_error(f"{self.name}: block sizes must be positive numbers, got {sizes[0]} and {sizes[1]}")
            return False
        for chunk in find_all(function, "attn.chunk"):
            if not _set_chunk(chunk, int(sizes[0]), self.name):
                return False
            if _is_prepared(chunk, choices):
                function.attributes[AT_ONCE] = ir.UnitAttr.get(function.context)
        kept = {name: value for name, value in choices.items() if name in own or name not in ("block_q", "block_kv")}
        if kept != own:
            with function.context:
                function.attributes[attributes.CHOICES] = attributes.write(kept)
        function.attributes["tile.blocks"] = ir.DenseI64ArrayAttr.get([int(size) for size in sizes], function.context)
        return True


def _name_of(function: ir.Operation) -> str:
    return ir.StringAttr(function.attributes["sym_name"]).value


def _add(function: ir.Operation, fields: Fields) -> None:
    """Adds to the choices of a function, in place of those of the same names."""
    with function.context:
        function.attributes[attributes.CHOICES] = attributes.write({**attributes.read(function, attributes.CHOICES), **fields})


def _is_prepared(op: ir.Operation, choices: Fields) -> bool:
    """Whether the emitter "hopper" makes a scan whose channels have decays, which it takes in a form of its own."""
    target = TARGETS.get(str(choices.get("arch", "sm_90a")))
    return target is not None and is_prepared(chunk_scan_facts(op), choices, target)


def _may_choose(choices: Fields) -> bool:
    """Whether Hopper's emitters make kernels of pairs, and sums over keys are made and added in the way that these choose."""
    hopper = choices.get("arch", "sm_90a") == "sm_90a" and choices.get("emitter", "hopper") in ("hopper", "warp")
    own = choices.get("key_sums") != "consumers" and not choices.get("reduction_warps")
    return hopper and own


def _is_left(own: Fields) -> bool:
    """Whether nobody chose anything of a kernel for Hopper, so that the `warp` dialect makes it where it is measured to be faster."""
    others = {name for name in own if not name.startswith(attributes.LAUNCH)} - OF_MACHINE - {"key_sums", "length"}
    return not others and own.get("arch", "sm_90a") == "sm_90a" and own.get("key_sums", "auto") == "auto"


def _set_chunk(op: ir.Operation, size: int, name: str) -> bool:
    """Gives an `attn.chunk` chunks of that size; its pieces hold for any. Reports sizes that do not divide where states are stored.

    Chunks of `crossing` products are whole intervals.
    """
    interval = interval_of(op) or size
    size = interval if "crossing" in op.attributes else size
    if interval % size:
        op.location.emit_error(f"{name}: chunks of {size} positions do not end where states are stored, every {interval}")
        return False
    op.attributes["chunk"] = ir.IntegerAttr.get(op.attributes["chunk"].type, size)
    return True
