"""How programs are differentiated for NVIDIA GPUs."""

from collections.abc import Sequence

from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.program import prepare_derivative

APART = "apart=true"
"""How delta rules in 16 bits are differentiated: by scans that matrix instructions multiply at their full rate."""
KEEP = "keep=true"
"""What such a rule writes, and states, go from the forward pass to the backward one, which would make them again otherwise."""


def derivative(function: str, wrt: Sequence[str], arch: str, segment: int = 0, deterministic: bool = False) -> tuple[str, str]:
    """See `prepare_derivative`. Scans that are cut into segments stay those of all sizes and types."""
    return prepare_derivative(function, wrt, pipeline.outline(arch, deterministic), segment, options="" if segment else f"{APART} {KEEP}")
