"""attn-mlir: a compiler for attention that its user invents."""

import importlib
from typing import TYPE_CHECKING, Any

from attn_mlir.errors import ArgumentError, AttnError, CompileError, TraceError, UnsupportedError

if TYPE_CHECKING:
    from attn_mlir.api import masks, mods, rows
    from attn_mlir.api.attention import Attention, attention
    from attn_mlir.api.rows import softmax
    from attn_mlir.frontend.sizes import kv_len, num_heads, q_len
    from attn_mlir.frontend.vocabulary import detach

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "AttnError",
    "Attention",
    "CompileError",
    "TraceError",
    "UnsupportedError",
    "attention",
    "detach",
    "kv_len",
    "masks",
    "mods",
    "num_heads",
    "q_len",
    "rows",
    "softmax",
]

# Imported on first use: these need torch, which passes and tools do not.
_LAZY = {
    "Attention": "attn_mlir.api.attention",
    "attention": "attn_mlir.api.attention",
    "detach": "attn_mlir.frontend.vocabulary",
    "kv_len": "attn_mlir.frontend.sizes",
    "masks": "attn_mlir.api.masks",
    "mods": "attn_mlir.api.mods",
    "num_heads": "attn_mlir.frontend.sizes",
    "q_len": "attn_mlir.frontend.sizes",
    "rows": "attn_mlir.api.rows",
    "softmax": "attn_mlir.api.rows",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'attn_mlir' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name])
    found = module if module.__name__.endswith(f".{name}") and not hasattr(module, name) else getattr(module, name)
    globals()[name] = found
    return found
