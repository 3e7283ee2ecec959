"""Additions of sums over keys by warps of their own, and claims there: evaluated in every schedule, and with faults."""

from collections.abc import Callable

import pytest

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.warp import RULES, kernel_code
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.warp import schedules_of
from machine_code import compiled
from test_warp_backward import Ops, Whole, find, of_pairs, pairs_of, problem, program, right_in_each
from warp_text import check_text

_DIM = 128
_ADDED: Fields = {"emitter": "warp", "reduction_warps": 1, "pin": 1, "held": 1, "scale": 1, "block_q": 128, "block_kv": 64}
_CLAIMED: Fields = {**_ADDED, "claims": 1}
FORMS: dict[str, tuple[int, str, Fields]] = {
    "at once": (128, "consumers", _ADDED),
    "late": (128, "late", _ADDED),
    "claimed": (128, "late", _CLAIMED),
    "of a warpgroup": (64, "warpgroup", _CLAIMED),
}
"""Columns, who makes sums over keys, and what else is chosen."""


@pytest.mark.parametrize("form", FORMS)
def test_every_schedule(form: str) -> None:
    dim, key_sums, more = FORMS[form]
    made = program(pipeline.SCHEDULE, key_sums=key_sums, dim=dim, more=more)
    names = [ir.StringAttr(role.attributes["sym_name"]).value for role in find_all(pairs_of(made), "warp.role")]
    assert "additions" in names
    right_in_each(made, schedules_of(pairs_of(made)).values(), problem(300, dim))
