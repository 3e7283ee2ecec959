"""Choices for the kernels of a program, kept in its module: `nvidia.tuned = {kernel = {block_q = 128, ...}, ...}`.

So a tuned program is its text: whoever compiles it, in this or in another process, gets the tuned kernels.
"""

from collections.abc import Mapping
from dataclasses import replace

from attn_mlir.backends.fields import Fields, tuned_in, tuned_name, with_tuned
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.nvidia import blocks, narrow_windows, thresholds
from attn_mlir.backends.nvidia.target import OF_MACHINE, TARGETS
from attn_mlir.backends.nvidia.tuning import space
from attn_mlir.backends.nvidia.tuning.facts import facts_of
from attn_mlir.backends.nvidia.tuning.table import next_length
from attn_mlir.backends.nvidia.turned_ahead import TURNED, TURNED_FROM
from attn_mlir.mlir import ir

TUNED = "nvidia.tuned"
EVERY = "every kernel"
"""The name under which choices for all kernels stand; those for one come first (see `tuned_name`)."""
CLUSTER = "cluster"
"""In choices: how many thread blocks share the columns; 1: none do. Only functions that `nvidia-slice-values` has narrowed keep it."""


def with_choices(text: str, choices: Mapping[str, Fields]) -> str:
    """The text of a module with choices for its kernels; see `fields.with_tuned`."""
    return with_tuned(text, choices, TUNED)


def choices_in(module: ir.Operation) -> dict[str, Fields]:
    """The choices that a module keeps; see `fields.tuned_in`."""
    return tuned_in(module, TUNED)


def choices_for(function: ir.Operation, tuned: Mapping[str, Fields]) -> Fields:
    """What is chosen for a function before tiling: its own `tile.choices` first, then tuned ones, then the best untuned schedule.

    `length` among them asks for what is best for so many keys; `longer` tells from how many keys on other choices would be better.
    """
    own = attributes.read(function, attributes.CHOICES)
    kept = {**tuned.get(EVERY, {}), **tuned.get(tuned_name(function), {})}
    # Only who transposes values before a kernel asks for one that takes them so, in `own`.
    known = {**{name: value for name, value in kept.items() if name not in (CLUSTER, TURNED)}, **own}
    if "block_q" in known and "block_kv" in known:
        return known
    if is_synchronous(known):
        return known
    shape = blocks.facts_of(function)
    if shape is not None and shape.bits == 8:
        return _of_eight_bit(shape, known)
    if shape is not None and shape.sided and not tuned:
        known = _of_narrow_windows(shape, known)
        if "block_q" in known:
            return known
    if shape is not None and shape.widened:
        return known  # what is measured for 16 bits leaves the producer no registers to widen with
    facts = facts_of(function)
    target = TARGETS.get(str(known.get("arch", "sm_90a")))
    if facts is None or target is None:
        return known
    if facts.scan is not None and known.get("emitter") == "tilelang":
        facts = replace(facts, scan=replace(facts.scan, prepared=0))
    length = int(known.get("length", 0))
    longer = 0 if "block_q" in known or "block_kv" in known else next_length(facts, target.arch, length)
    return {**space.best(facts, target, length=length), **known, **({"longer": longer} if longer else {})}


def _of_eight_bit(shape: blocks.NvidiaFacts, known: Fields) -> Fields:
    """Choices for 8-bit elements, of which the model knows nothing: by their columns, and larger blocks where there are many keys."""
    if known.get("emitter", "warp") != "warp":
        return known
    more, usual = blocks.long_eight_bit(shape), blocks.of_eight_bit(shape)
    if not more and usual.keys() & known.keys():
        return known
    queries, turned = blocks.turned_values(shape)
    own = turned if TURNED in known else {TURNED_FROM: queries} if queries else {}
    if not more:
        return {**usual, **own, **known}
    return {**more, **own, **known} if int(known.get("length", 0)) >= thresholds.LONG_KEYS else {**known, "longer": thresholds.LONG_KEYS}


def _of_narrow_windows(shape: blocks.NvidiaFacts, known: Fields) -> Fields:
    """Choices for windows of few keys where these are asked for; else those that are known, and for which calls others are better."""
    others = {name for name in known if not name.startswith(attributes.LAUNCH)} - OF_MACHINE - {"deterministic", narrow_windows.PACK}
    if others or known.get("arch", "sm_90a") != "sm_90a" or shape.bits != 16 or shape.head != shape.value:
        return known
    if narrow_windows.PACK not in known:
        most = narrow_windows.most_keys(shape.grid, shape.products, shape.head)
        return {**known, narrow_windows.NARROW: most} if most else known
    made = narrow_windows.fields_of(shape.grid, shape.products, shape.head, int(known[narrow_windows.PACK]))
    return {**known, **made, **({"emitter": "warp"} if made and shape.grid == "rows" else {})}


def is_synchronous(choices: Mapping[str, int | str]) -> bool:
    """Whether a kernel is one of the `warp` dialect for a chip without TMA and wgmma; its blocks follow a rule (`blocks`)."""
    target = TARGETS.get(str(choices.get("arch", "sm_90a")))
    return choices.get("emitter") == "warp" and target is not None and not target.bulk_copies
