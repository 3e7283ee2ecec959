"""The names that AttentionEngine's `core.transform.core` has."""

from attn_mlir import CustomIO, SymbolicArray, SymbolicTensor, SymbolScalar, Var, create_block_mask, meta_tensor
from attn_mlir.api.block_mask import create_mask

__all__ = ["CustomIO", "SymbolScalar", "SymbolicArray", "SymbolicTensor", "Var", "create_block_mask", "create_mask", "meta_tensor"]
