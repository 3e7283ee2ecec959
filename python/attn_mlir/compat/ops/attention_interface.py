"""The names that attention_autotuner"s `ops.attention_interface` has."""

from attn_mlir.integrations.autotuner import MultiHeadAttnFunc, flash_attn_func

__all__ = ["MultiHeadAttnFunc", "flash_attn_func"]
