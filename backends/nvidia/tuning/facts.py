"""What a schedule depends on: the sizes and the work of one kernel, read from its function before tiling."""

from attn_mlir.backends.nvidia.tuning.chunk_scan_facts import chunk_scan_facts
from attn_mlir.backends.tuning import facts
from attn_mlir.backends.tuning.facts import KernelFacts
from attn_mlir.mlir import ir

__all__ = ["KernelFacts", "facts_of"]


def facts_of(function: ir.Operation) -> KernelFacts | None:
    """The facts of a function before `attn-tile`, those of a KV loop or of a chunk scan; None where it becomes no kernel."""
    return facts.facts_of(function, chunk_scan_facts)
