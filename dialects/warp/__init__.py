"""The `warp` dialect: who does it, where and when."""

from attn_mlir.dialects.warp.barriers import ArriveExpectOp, ArriveOp, FenceAsyncOp, MbarrierOp, NamedArriveOp, NamedSyncOp, StageOp, WaitOp
from attn_mlir.dialects.warp.copies import (
    AddAsyncOp,
    CopyAsyncOp,
    CopyRowsAsyncOp,
    LoadAsyncOp,
    LoadWaitOp,
    StoreAsyncOp,
    StoreCommitOp,
    StoreWaitOp,
)
from attn_mlir.dialects.warp.dialect import BarrierType, LayoutAttr, PendingType, SharedAttr, Warp
from attn_mlir.dialects.warp.fragments import MapOp, ReduceOp, VoteOp
from attn_mlir.dialects.warp.memory import AllocOp, ConcatOp, ReadOp, TransposeOp, ViewOp, WriteOp
from attn_mlir.dialects.warp.products import MmaAsyncOp, MmaBeginOp, MmaCommitOp, MmaOp, MmaWaitOp, RegistersOp
from attn_mlir.dialects.warp.rows import AtomicAddOp, LoadOp, OrderPassOp, OrderWaitOp, StoreOp
from attn_mlir.dialects.warp.structure import BlockCountOp, BlockIdOp, EachWarpOp, ElectOp, KernelOp, NextTileOp, RoleOp, YieldOp

__all__ = [
    "AddAsyncOp",
    "AllocOp",
    "ArriveExpectOp",
    "ArriveOp",
    "AtomicAddOp",
    "BarrierType",
    "BlockCountOp",
    "BlockIdOp",
    "ConcatOp",
    "CopyAsyncOp",
    "CopyRowsAsyncOp",
    "EachWarpOp",
    "ElectOp",
    "FenceAsyncOp",
    "KernelOp",
    "LayoutAttr",
    "LoadAsyncOp",
    "LoadOp",
    "LoadWaitOp",
    "MapOp",
    "MbarrierOp",
    "MmaAsyncOp",
    "MmaBeginOp",
    "MmaCommitOp",
    "MmaOp",
    "MmaWaitOp",
    "NamedArriveOp",
    "NamedSyncOp",
    "NextTileOp",
    "OrderPassOp",
    "OrderWaitOp",
    "PendingType",
    "ReadOp",
    "ReduceOp",
    "RegistersOp",
    "RoleOp",
    "SharedAttr",
    "StageOp",
    "StoreAsyncOp",
    "StoreCommitOp",
    "StoreOp",
    "StoreWaitOp",
    "TransposeOp",
    "ViewOp",
    "VoteOp",
    "WaitOp",
    "Warp",
    "WriteOp",
    "YieldOp",
]
