"""The `tile` dialect: how to compute it."""

from attn_mlir.dialects.tile.accumulate import AccumulateOp, ScatterAddOp, ScatterYieldOp
from attn_mlir.dialects.tile.compute import CumsumOp, DotAddOp, DotOp, DotRescaleOp, FillOp, MapOp, SolveUnitOp, YieldOp
from attn_mlir.dialects.tile.decays import DecayChannelsOp, DecayValuesOp
from attn_mlir.dialects.tile.dialect import Tile
from attn_mlir.dialects.tile.memory import GatherOp, LoadOp, LoadPagesOp, ProgramIdOp, StoreOp
from attn_mlir.dialects.tile.windows import AddBandOp, AddWindowOp, BandOp, LoadWindowOp

__all__ = [
    "AccumulateOp",
    "AddBandOp",
    "AddWindowOp",
    "BandOp",
    "CumsumOp",
    "DecayChannelsOp",
    "DecayValuesOp",
    "DotAddOp",
    "DotOp",
    "DotRescaleOp",
    "FillOp",
    "GatherOp",
    "LoadOp",
    "LoadPagesOp",
    "LoadWindowOp",
    "MapOp",
    "ProgramIdOp",
    "ScatterAddOp",
    "ScatterYieldOp",
    "SolveUnitOp",
    "StoreOp",
    "Tile",
    "YieldOp",
]
