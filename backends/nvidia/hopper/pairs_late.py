"""Sums over keys (dQ) a step late: consumers multiply the dS of the step before, so that they do not meet in the middle of a step.

Consumers share these products, so each needs the dS of the other. Where they multiply it in the same step, both compute exponentials at the
same time, and none multiplies meanwhile. Here a consumer writes its dS, tells the other one, and multiplies what both wrote a step before:
they may be half a step apart.
"""

from attn_mlir.backends.gpu.structure import body as body_of
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout, head_columns
from attn_mlir.backends.nvidia.hopper.pairs_loop import STEP
from attn_mlir.backends.nvidia.hopper.pairs_values import early_row_values, early_value
from attn_mlir.backends.nvidia.hopper.tiles import STEP as STEP_COLUMNS
from attn_mlir.errors import UnsupportedError

ROW, HEAD = "late_row", "late_head"
"""Names of the place of the sums that are late; the row is -1 before the first step of a program."""
OWN, BEFORE = f"{STEP} % 2", f"({STEP} + 1) % 2"
"""The copy of weights that a step writes, and the one that it multiplies: that of the step before."""
HELD = "held"
"""In schedules: steps of 16 columns of keys and of values in registers (`BackwardLayout.held`)."""
EXCHANGE = "exchange"
"""In schedules: weights are exchanged as rows of "queries" or of "keys" (`BackwardLayout.turned`)."""
APART, BEGUN = "apart", 1
"""In schedules: `BackwardLayout.apart`; and the named barrier at which the second consumer waits for it."""
_WARPGROUPS = 2
"""Consumers for which there are named barriers."""


def full_weights(copy: str, warpgroup: str = "warpgroup") -> str:
    """The named barrier at which a consumer waits until the other one has written a copy, too."""
    return f"12 + {copy} * 2 + {warpgroup}"


def free_weights(copy: str, warpgroup: str = "warpgroup") -> str:
    """The one at which it waits before it writes a copy, until the other one has multiplied what was there."""
    return f"10 - 4 * ({copy}) + {warpgroup}"


def begin_late(core: Core) -> None:
    """Each consumer tells the other one that both copies are free."""
    for copy in range(2):
        core.writer.line(f"attn::named_arrive({free_weights(str(copy), '1 - warpgroup')}, 256);")


def end_late(core: Core) -> None:
    """Waits as often as the other consumer has told so."""
    for copy in range(2):
        core.writer.line(f"attn::named_sync({free_weights(str(copy))}, 256);")


def begin_apart(core: Core) -> None:
    """The second consumer begins a program when the first one has its first scores: one multiplies while the other computes weights.

    Both begin when keys have landed, and would take turns at each instruction, so that both have their scores late and at once.
    """
    core.writer.line(f"if ({ROW} < 0 && warpgroup == 1) attn::named_sync({BEGUN}, 256);")


def let_begin(core: Core) -> None:
    """The first one tells so."""
    core.writer.line(f"if ({ROW} < 0 && warpgroup == 0) attn::named_arrive({BEGUN}, 256);")


def check_late(layout: BackwardLayout) -> None:
    """Raises UnsupportedError for kernels whose sums over keys are not made late."""
    kernel, reason = layout.kernel, ""
    targets = {op.operands[2] for op in kernel.step_ops("tile.accumulate")}
    others = kernel.scatters or layout.words or layout.windows or layout.bands
    if layout.warpgroups != _WARPGROUPS:
        reason = f"{64 * _WARPGROUPS} keys a block, not {kernel.keys}"
    elif len(layout.exchange) != 1 or layout.exchange[0].copies != 2 or targets != set(layout.adds) or len(targets) != 1:
        reason = "one sum over keys of one tile of weights, of which there is room for two copies, and which leaves through TMA"
    elif others:
        reason = "no dropout, and nothing that is captured for every pair"
    if reason:
        raise UnsupportedError(f'hopper: sums over keys that are made a step late need {reason} (key_sums = "late")')


def late_pays(layout: BackwardLayout) -> bool:
    """Whether sums over keys are made late where nothing else is asked for."""
    try:
        check_late(layout)
    except UnsupportedError:
        return False
    return _is_measured(layout)


def _is_measured(layout: BackwardLayout) -> bool:
    return {head_columns(memory) for memory in (*layout.keys, *layout.queries)} == {thresholds.LATE_COLUMNS}


def check_early(core: Core, layout: BackwardLayout) -> None:
    """Raises UnsupportedError for kernels none of whose weights can be computed before the second product is there."""
    for step in layout.kernel.steps:
        dots, maps = ops_of(step, "tile.dot"), [op for op in ops_of(step, "tile.map") if len(list(op.operands)) == 2]
        few, type_of = layout.kernel.queries <= 64, core.scalars.type_of
        alone = next((op.results[0] for op in dots if maps and early_value(body_of(maps[0]), op.results[0]) is not None), None)
        found = [] if alone is None else early_row_values(maps[0], alone, few, type_of)
        if len(dots) != 2 or len(found) != 1 or layout.words is not None:
            text = "two products, one of which and one number of each query make the weights, and no dropout"
            raise UnsupportedError(f"hopper: exponentials that are held before the second product need {text} (early = 1)")


def early_pays(core: Core, layout: BackwardLayout, masked: bool) -> bool:
    """Whether half of the exponentials are held before the second product where nothing else is asked for; `masked`: see `is_masked`."""
    if not (layout.late and _is_measured(layout)) or (masked, layout.kernel.queries) not in thresholds.EARLY:
        return False
    if layout.kernel.step_ops("tile.scatter_add"):
        return False  # sums of captured tensors need the registers
    try:
        check_early(core, layout)
    except UnsupportedError:
        return False
    return True


def check_apart(layout: BackwardLayout) -> None:
    """Raises UnsupportedError for kernels whose second consumer cannot wait for the first one's scores."""
    if layout.apart and not (layout.late and layout.early):
        text = "sums over keys that are made a step late, and exponentials before the second product"
        raise UnsupportedError(f"hopper: consumers that begin programs apart need {text} (apart = 1)")


def check_held(layout: BackwardLayout) -> None:
    """Raises UnsupportedError for kernels whose consumers do not hold so many columns of keys and values."""
    columns = min(map(head_columns, layout.keys), default=0)
    if layout.held and not ((layout.late or layout.roles) and 0 < layout.held <= columns // STEP_COLUMNS):
        text = "sums over keys that are made a step late, or consumers with a weight each"
        text = f"{text}, and 1 to {columns // STEP_COLUMNS} steps of {STEP_COLUMNS} columns"
        raise UnsupportedError(f"hopper: keys that are held in registers need {text} (held = {layout.held})")


def held_pays(layout: BackwardLayout, masked: bool) -> int:
    """Steps of columns that are held where nothing else is asked for."""
    return thresholds.HELD_STEPS.get((masked, layout.kernel.queries), 0) if layout.early and _is_measured(layout) else 0


def turned_pays(layout: BackwardLayout) -> bool:
    """Whether weights are exchanged as rows of queries where nothing else is asked for."""
    return layout.late or layout.key_sums
