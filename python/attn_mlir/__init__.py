"""attn-mlir: a compiler for attention that its user invents."""

import importlib
from typing import TYPE_CHECKING, Any

from attn_mlir.errors import ArgumentError, AttnError, CompileError, PerformanceWarning, TraceError, UnsupportedError
from attn_mlir.torch_import import register_with_torch

if TYPE_CHECKING:
    from attn_mlir import flex, testing
    from attn_mlir.api import arch, masks, mods, recurrences, rows
    from attn_mlir.api.ahead import InputSpec, compile_ahead
    from attn_mlir.api.ahead_linear import LinearSpec
    from attn_mlir.api.ahead_operators import compile_operators
    from attn_mlir.api.attention import Attention, attention
    from attn_mlir.api.block_mask import create_block_mask
    from attn_mlir.api.custom_io import CustomIO
    from attn_mlir.api.dropout import dropout_mask
    from attn_mlir.api.engine import AttentionEngine
    from attn_mlir.api.linear import LinearAttention, linear_attention
    from attn_mlir.api.linear_engine import LinearAttentionEngine
    from attn_mlir.api.linear_step import linear_attention_step
    from attn_mlir.api.meta import meta_tensor
    from attn_mlir.api.online_func import OnlineFunc
    from attn_mlir.api.online_rows import Identity, OnlineRetention, OnlineSoftmax, online_retention
    from attn_mlir.api.partial import Partial, merge
    from attn_mlir.api.recurrences import gla, lightning, mamba2, retention_linear, simple_gla
    from attn_mlir.api.rows import softmax
    from attn_mlir.api.symbols import SymbolicArray, SymbolicTensor, SymbolScalar, Var
    from attn_mlir.api.varlen import attention_varlen
    from attn_mlir.flex import flex_attention
    from attn_mlir.frontend.elementary import approximate_tanh, detach
    from attn_mlir.frontend.partners import partner, rotate_half
    from attn_mlir.frontend.sizes import kv_len, num_heads, q_len
    from attn_mlir.seeing.visualize import visualize

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "Attention",
    "AttentionEngine",
    "AttnError",
    "CompileError",
    "CustomIO",
    "Identity",
    "InputSpec",
    "LinearAttention",
    "LinearAttentionEngine",
    "LinearSpec",
    "OnlineFunc",
    "OnlineRetention",
    "OnlineSoftmax",
    "Partial",
    "PerformanceWarning",
    "SymbolScalar",
    "SymbolicArray",
    "SymbolicTensor",
    "TraceError",
    "UnsupportedError",
    "Var",
    "approximate_tanh",
    "arch",
    "attention",
    "attention_varlen",
    "compile_ahead",
    "compile_operators",
    "create_block_mask",
    "detach",
    "dropout_mask",
    "flex",
    "flex_attention",
    "gla",
    "kv_len",
    "lightning",
    "linear_attention",
    "linear_attention_step",
    "mamba2",
    "masks",
    "merge",
    "meta_tensor",
    "mods",
    "num_heads",
    "online_retention",
    "partner",
    "q_len",
    "recurrences",
    "retention_linear",
    "rotate_half",
    "rows",
    "simple_gla",
    "softmax",
    "testing",
    "visualize",
]

# Imported on first use: these need torch, which passes and tools do not.
_LAZY = {
    "AttentionEngine": "attn_mlir.api.engine",
    "CustomIO": "attn_mlir.api.custom_io",
    "Identity": "attn_mlir.api.online_rows",
    "InputSpec": "attn_mlir.api.ahead",
    "LinearSpec": "attn_mlir.api.ahead_linear",
    "OnlineFunc": "attn_mlir.api.online_func",
    "OnlineRetention": "attn_mlir.api.online_rows",
    "OnlineSoftmax": "attn_mlir.api.online_rows",
    "Partial": "attn_mlir.api.partial",
    "SymbolScalar": "attn_mlir.api.symbols",
    "SymbolicArray": "attn_mlir.api.symbols",
    "SymbolicTensor": "attn_mlir.api.symbols",
    "Var": "attn_mlir.api.symbols",
    "LinearAttention": "attn_mlir.api.linear",
    "LinearAttentionEngine": "attn_mlir.api.linear_engine",
    "compile_ahead": "attn_mlir.api.ahead",
    "compile_operators": "attn_mlir.api.ahead_operators",
    "create_block_mask": "attn_mlir.api.block_mask",
    "meta_tensor": "attn_mlir.api.meta",
    "online_retention": "attn_mlir.api.online_rows",
    "Attention": "attn_mlir.api.attention",
    "attention": "attn_mlir.api.attention",
    "attention_varlen": "attn_mlir.api.varlen",
    "arch": "attn_mlir.api.arch",
    "approximate_tanh": "attn_mlir.frontend.elementary",
    "detach": "attn_mlir.frontend.elementary",
    "dropout_mask": "attn_mlir.api.dropout",
    "flex": "attn_mlir.flex",
    "flex_attention": "attn_mlir.flex",
    "gla": "attn_mlir.api.recurrences",
    "kv_len": "attn_mlir.frontend.sizes",
    "lightning": "attn_mlir.api.recurrences",
    "linear_attention": "attn_mlir.api.linear",
    "linear_attention_step": "attn_mlir.api.linear_step",
    "mamba2": "attn_mlir.api.recurrences",
    "masks": "attn_mlir.api.masks",
    "merge": "attn_mlir.api.partial",
    "mods": "attn_mlir.api.mods",
    "num_heads": "attn_mlir.frontend.sizes",
    "partner": "attn_mlir.frontend.partners",
    "q_len": "attn_mlir.frontend.sizes",
    "recurrences": "attn_mlir.api.recurrences",
    "retention_linear": "attn_mlir.api.recurrences",
    "rotate_half": "attn_mlir.frontend.partners",
    "rows": "attn_mlir.api.rows",
    "simple_gla": "attn_mlir.api.recurrences",
    "softmax": "attn_mlir.api.rows",
    "testing": "attn_mlir.testing",
    "visualize": "attn_mlir.seeing.visualize",
}


register_with_torch()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'attn_mlir' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name])
    found = module if module.__name__.endswith(f".{name}") and not hasattr(module, name) else getattr(module, name)
    globals()[name] = found
    return found
