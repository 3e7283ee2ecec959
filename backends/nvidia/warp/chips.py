"""The tables of rules, one for each chip."""

from attn_mlir.backends.nvidia.forming.facts import target_of
from attn_mlir.backends.nvidia.warp import (
    barriers,
    columns,
    copies,
    dropout,
    fragments,
    memory,
    pages,
    products,
    rows,
    scalars,
    structure,
    windows,
)
from attn_mlir.backends.nvidia.warp.printer import Rule
from attn_mlir.mlir import ir

RULES: dict[str, Rule] = {
    **structure.RULES,
    **scalars.RULES,
    **barriers.RULES,
    **memory.RULES,
    **copies.RULES,
    **pages.RULES,
    **products.RULES,
    **fragments.RULES,
    **columns.RULES,
    **dropout.RULES,
    **rows.RULES,
    **windows.RULES,
}
_OF_HOPPER = frozenset(
    f"warp.{name}" for name in (
        "add_async arrive arrive_expect copy_async copy_pages_async copy_rows_async copy_rows_scaled copy_window_async "
        "drop fence_async find_pages hold make_rows mbarrier mma_async mma_begin mma_commit mma_wait registers store_async "
        "store_commit store_wait wait write_transposed"
    ).split()
)  # fmt: skip
"""Ops whose instructions came with sm_90: TMA, wgmma, stmatrix, mbarriers that are waited for."""
AMPERE_RULES = {name: rule for name, rule in RULES.items() if name not in _OF_HOPPER}


def rules_for(kernel: ir.Operation) -> dict[str, Rule]:
    """The printer for the chip of a kernel (`forming.facts.target_of`)."""
    return RULES if target_of(kernel).bulk_copies else AMPERE_RULES
