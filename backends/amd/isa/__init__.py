"""Executes compiled kernels for gfx90a on the CPU, instruction by instruction: what tests and reports run instead of a GPU."""

from attn_mlir.backends.amd.isa.machine import IsaMachine
from attn_mlir.backends.amd.isa.state import InterpreterError

__all__ = ["InterpreterError", "IsaMachine"]
