"""attn-mlir: a compiler for attention that its user invents."""

__version__ = "0.1.0"
