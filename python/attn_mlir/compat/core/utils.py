"""The names that AttentionEngine's `core.utils` has."""

from attn_mlir import meta_tensor

__all__ = ["meta_tensor"]
