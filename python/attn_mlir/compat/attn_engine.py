"""The names that AttentionEngine's `attn_engine` has."""

from attn_mlir import AttentionEngine, Identity, LinearAttentionEngine, OnlineFunc, OnlineRetention, OnlineSoftmax, online_retention

__all__ = ["AttentionEngine", "Identity", "LinearAttentionEngine", "OnlineFunc", "OnlineRetention", "OnlineSoftmax", "online_retention"]
