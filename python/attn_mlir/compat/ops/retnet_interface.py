"""The names that attention_autotuner"s `ops.retnet_interface` has."""

from attn_mlir.integrations.autotuner import RetNetAttn, RetNetAttnFunc

__all__ = ["RetNetAttn", "RetNetAttnFunc"]
