"""Attention and recurrences over several processes: sequences that are cut over the ranks of a DeviceMesh."""

from attn_mlir.distributed.decode import decode_attention
from attn_mlir.distributed.linear import linear_attention
from attn_mlir.distributed.ring import ring_attention
from attn_mlir.distributed.sharding import shard, unshard
from attn_mlir.distributed.transfer import traffic

__all__ = ["decode_attention", "linear_attention", "ring_attention", "shard", "traffic", "unshard"]
