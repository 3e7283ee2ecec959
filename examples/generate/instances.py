"""Instances for the program beside this file: windows forward and backward, and an attention with functions of its own."""

from typing import Any

import torch

import attn_mlir
from attn_mlir.tools.generate import Instance

weights = torch.ones(4, requires_grad=True)


def cubed(s: Any) -> Any:
    """An invented row."""
    w = attn_mlir.rows.relu(s)
    return w * w * w


def by_head(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Scores that each head weighs by a number of its own."""
    return score * weights[h]


instances = [
    Instance("fwd", "fp32", 32, mask="b:64,0", lse=True),
    Instance("bwd", "fp32", 32, mask="b"),
    Instance("fwd", "fp32", 32, value_dim=16, row=cubed, score_mod=by_head, variant="cubed"),
]
