"""attn-mlir: a compiler for attention that its user invents."""

import importlib
from typing import Any

from attn_mlir.torch_import import register_with_torch

__version__ = "0.1.0"

# The public names, by the modules that hold them; `make docs` makes __init__.pyi of these tables, for type checkers.
# Imported on first use: most need torch, which passes and tools do not.
_NAMES = {
    "attn_mlir.api.ahead": "InputSpec LinearSpec compile_ahead",
    "attn_mlir.api.ahead_operators": "compile_operators",
    "attn_mlir.api.append": "append_kv",
    "attn_mlir.api.attention": "Attention attention",
    "attn_mlir.api.block_mask": "create_block_mask",
    "attn_mlir.api.custom_io": "CustomIO",
    "attn_mlir.api.delta_rules": "delta_rule gated_delta_rule kda",
    "attn_mlir.api.dropout": "dropout_mask",
    "attn_mlir.api.engine": "AttentionEngine",
    "attn_mlir.api.linear": "LinearAttention linear_attention linear_attention_step",
    "attn_mlir.api.linear_engine": "LinearAttentionEngine",
    "attn_mlir.api.meta": "meta_tensor",
    "attn_mlir.api.online_func": "OnlineFunc",
    "attn_mlir.api.online_rows": "Identity OnlineRetention OnlineSoftmax online_retention",
    "attn_mlir.api.partial": "Partial merge",
    "attn_mlir.api.recurrences": "gla lightning mamba2 retention_linear simple_gla",
    "attn_mlir.api.rows": "softmax",
    "attn_mlir.api.symbols": "SymbolScalar SymbolicArray SymbolicTensor Var",
    "attn_mlir.api.plan": "plan_varlen",
    "attn_mlir.api.varlen": "attention_varlen",
    "attn_mlir.errors": "ArgumentError AttnError CompileError PerformanceWarning TraceError UnsupportedError",
    "attn_mlir.flex": "flex_attention",
    "attn_mlir.frontend.elementary": "approximate_tanh detach",
    "attn_mlir.frontend.partners": "partner rotate_half",
    "attn_mlir.frontend.sizes": "kv_len num_heads q_len",
    "attn_mlir.seeing.visualize": "visualize",
}
_MODULES = {"attn_mlir": "flex testing", "attn_mlir.api": "arch masks mods recurrences rows", "attn_mlir.integrations": "fla"}

_PLACES = {name: module for module, names in (*_NAMES.items(), *_MODULES.items()) for name in names.split()}
__all__ = sorted(_PLACES)  # pyright: ignore[reportUnsupportedDunderAll]


register_with_torch()


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'attn_mlir' has no attribute {name!r}")
    module = _PLACES[name]
    found = importlib.import_module(f"{module}.{name}") if module in _MODULES else getattr(importlib.import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
