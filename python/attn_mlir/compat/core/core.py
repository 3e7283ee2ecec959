"""The names that AttentionEngine's `core.core` has."""

from attn_mlir import CustomIO, SymbolicArray, SymbolicTensor, SymbolScalar, Var, create_block_mask, meta_tensor

__all__ = ["CustomIO", "SymbolScalar", "SymbolicArray", "SymbolicTensor", "Var", "create_block_mask", "meta_tensor"]
