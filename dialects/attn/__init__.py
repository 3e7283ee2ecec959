"""The `attn` dialect: what to compute."""

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.attn.ops import AttentionOp, OnlineOp
from attn_mlir.dialects.attn.pieces import (
    BlockMaskOp,
    BoundsOp,
    FinalizeOp,
    InitOp,
    KeyOp,
    MaskOp,
    MergeOp,
    QueryOp,
    RowOp,
    ScoreOp,
    StepOp,
    ValueOp,
)
from attn_mlir.dialects.attn.scalar import DetachOp, RangeOp, ReduceOp, YieldOp

__all__ = [
    "AttentionOp",
    "Attn",
    "BlockMaskOp",
    "BoundsOp",
    "DetachOp",
    "FinalizeOp",
    "InitOp",
    "KeyOp",
    "MaskOp",
    "MergeOp",
    "OnlineOp",
    "QueryOp",
    "RangeOp",
    "ReduceOp",
    "RowOp",
    "ScoreOp",
    "StepOp",
    "ValueOp",
    "YieldOp",
]
