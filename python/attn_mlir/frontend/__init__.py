"""Tracing: plain Python functions, called once on symbolic values, become the `attn` dialect."""

from attn_mlir.frontend import torch_functions as torch_functions
