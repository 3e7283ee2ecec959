"""The names that attention_autotuner"s `ops` has."""

from attn_mlir.integrations.autotuner import MultiHeadAttnFunc, RetNetAttn, RetNetAttnFunc, flash_attn_func

__all__ = ["MultiHeadAttnFunc", "RetNetAttn", "RetNetAttnFunc", "flash_attn_func"]
