"""The hand-written forward kernel in `amd_forward.hip`, as the checkers take it, and what it should give."""

import math
from pathlib import Path

import torch

from attn_mlir.backends.gpu.kernel import KernelCode, KernelParameter

SOURCE = (Path(__file__).parent / "amd_forward.hip").read_text()
LOG2_E = 1.4426950408889634
ROWS = 128
OUTPUTS = (3, 4)


def forward_code(columns: int, causal: bool, source: str = SOURCE) -> KernelCode:
    """The kernel for heads of 64 or 128 columns; its arguments are q, k, v, o, lse and the scale to base 2."""
    defines = f"#define HEAD_DIM {columns}\n#define IS_CAUSAL {str(causal).lower()}\n"
    pointers = [KernelParameter("pointer", number) for number in range(5)]
    sizes = [KernelParameter("size", 0, 2), KernelParameter("size", 0, 1), KernelParameter("size", 1, 1)]
    parameters = (*pointers, *sizes, KernelParameter("scalar", 5, -1, "float"))
    return KernelCode(
        "forward", "forward", defines + source, parameters, 256, 32768, language="hip", arch="gfx90a", flags=("-ffp-contract=fast",)
    )


def inputs(columns: int, length: int, heads: int = 2, kv_heads: int = 1, seed: int = 0) -> list[torch.Tensor]:
    """Random q, k and v."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn((1, h, length, columns), generator=generator).half() for h in (heads, kv_heads, kv_heads)]


def arguments(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor | float]:
    """Those of the kernel; outputs are NaN."""
    return [q, k, v, torch.full_like(q, torch.nan), torch.full(q.shape[:3], torch.nan), LOG2_E / math.sqrt(q.shape[3])]


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse in f64."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = q @ k.mT / math.sqrt(q.shape[3])
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)
