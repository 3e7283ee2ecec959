"""The `attn` dialect: what to compute."""

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.attn.key_lists import KeyListsOp
from attn_mlir.dialects.attn.linear import ChunkOp, LinearAttentionOp
from attn_mlir.dialects.attn.linear_erase import EraseOp, WriteOp
from attn_mlir.dialects.attn.linear_pieces import (
    ChunkDecayOp,
    DecayGradientOp,
    DecayGradientSumOp,
    DecayMaskOp,
    DecayOp,
    HeadSumOp,
    InputDecayOp,
    OutputDecayOp,
    ResultOp,
    SkipOp,
)
from attn_mlir.dialects.attn.linear_segments import DecaySumOp, StateScanOp, TransitionScanOp
from attn_mlir.dialects.attn.ops import AttentionOp, OnlineOp
from attn_mlir.dialects.attn.pages import PagesOp
from attn_mlir.dialects.attn.pairs import (
    ElementOp,
    ElementsOp,
    OutputOp,
    PairOp,
    PairsOp,
    ProductOp,
    QueryBoundsOp,
    ResidualOp,
    TermOp,
)
from attn_mlir.dialects.attn.parts import CarriedOp, CombineOp, PartListOp, PartsOp
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
from attn_mlir.dialects.attn.scalar import DetachOp, KeptOp, RangeOp, ReduceOp, SlopeOp, YieldOp
from attn_mlir.dialects.attn.sequences import SequencesOp
from attn_mlir.dialects.attn.sums import CollectOp, KeySumOp, QuerySumOp, RowDotOp, ScatterOp

__all__ = [
    "AttentionOp",
    "Attn",
    "BlockMaskOp",
    "BoundsOp",
    "CarriedOp",
    "ChunkDecayOp",
    "ChunkOp",
    "CollectOp",
    "CombineOp",
    "DecayGradientOp",
    "DecayGradientSumOp",
    "DecayMaskOp",
    "DecayOp",
    "DecaySumOp",
    "DetachOp",
    "ElementOp",
    "ElementsOp",
    "EraseOp",
    "FinalizeOp",
    "HeadSumOp",
    "InitOp",
    "InputDecayOp",
    "KeptOp",
    "KeyListsOp",
    "KeyOp",
    "KeySumOp",
    "LinearAttentionOp",
    "MaskOp",
    "MergeOp",
    "OnlineOp",
    "OutputDecayOp",
    "OutputOp",
    "PagesOp",
    "PairOp",
    "PairsOp",
    "PartListOp",
    "PartsOp",
    "ProductOp",
    "QueryBoundsOp",
    "QueryOp",
    "QuerySumOp",
    "RangeOp",
    "ReduceOp",
    "ResidualOp",
    "ResultOp",
    "RowDotOp",
    "RowOp",
    "ScatterOp",
    "ScoreOp",
    "SequencesOp",
    "SkipOp",
    "SlopeOp",
    "StateScanOp",
    "StepOp",
    "TermOp",
    "TransitionScanOp",
    "ValueOp",
    "WriteOp",
    "YieldOp",
]
