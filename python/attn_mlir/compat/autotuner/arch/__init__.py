"""The names that AttentionEngine"s `autotuner.arch` has."""

from attn_mlir.api.arch import A100, H100, H200, MI250, MI300X, RTX4090, Arch

__all__ = ["A100", "H100", "H200", "MI250", "MI300X", "RTX4090", "Arch"]
