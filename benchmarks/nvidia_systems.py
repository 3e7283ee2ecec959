"""The systems that the NVIDIA benchmark compares, and how each is asked: `forward(q, k, v)` on [B, S, H, D], or why it can't."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from nvidia_cases import CAP, WINDOW, Case, Problem
from torch.nn.attention import SDPBackend, sdpa_kernel

import attn_mlir

Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
NAMES = {
    "attn_mlir": "attn-mlir",
    "attn_mlir_tilelang": "attn-mlir through TileLang",
    "fa3": "FA3",
    "fa4": "FA4",
    "cudnn": "cuDNN",
    "flash": "FA2 (SDPA)",
    "flex": "FlexAttention",
}
OURS = ("attn_mlir", "attn_mlir_tilelang")


def ours(problem: Problem, **options: Any) -> attn_mlir.Attention:
    """attn-mlir; `options` go to `attn_mlir.Attention`."""
    kind = problem.kind
    return attn_mlir.Attention(row=kind.row, score_mod=kind.score, mask_mod=kind.mask, layout="bshd", **options)


def through_tilelang(problem: Problem) -> Forward | str:
    """attn-mlir, its kernels made by the portable generator."""
    try:
        importlib.import_module("tilelang")
    except ImportError as error:
        return f"not installed: {error}"
    from attn_mlir.backends.nvidia.tuning.choices import EVERY, with_choices
    from attn_mlir.testing.rewriting import Rewriting

    attention: Any = ours(problem)
    attention._tuning = Rewriting(lambda text: with_choices(text, {EVERY: {"emitter": "tilelang"}}))
    return attention


def sdpa(problem: Problem, backend: SDPBackend) -> Forward | str:
    """PyTorch's attention with one of its kernels."""
    case = problem.case
    if case.kind not in ("full", "causal"):
        return "full and causal softmax only"
    causal, grouped = case.kind == "causal", case.heads != case.kv_heads

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel([backend]):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped).transpose(1, 2)

    return forward


def flex(problem: Problem) -> Forward | str:
    """Compiled FlexAttention, for exactly the shapes of the case; its block mask is made beforehand, at no cost to it."""
    case, kind = problem.case, problem.kind
    if kind.eager_row is not None:
        return "softmax only"
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    blocks = None if kind.mask is None else create_block_mask(kind.mask, None, None, case.length, case.length, device=problem.device)
    grouped = case.heads != case.kv_heads

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return compiled(q, k, v, score_mod=kind.score, block_mask=blocks, enable_gqa=grouped).transpose(1, 2)

    return forward


def flash(problem: Problem, module: str) -> Forward | str:
    """FlashAttention 3 or 4, where it is installed."""
    try:
        function = importlib.import_module(module).flash_attn_func
    except (ImportError, AttributeError) as error:
        return f"not installed: {error}"
    options: dict[str, Any] = {"causal": problem.case.kind != "full"}
    if problem.case.kind == "window1024":
        options["window_size"] = (WINDOW, 0)
    elif problem.case.kind == "softcap30":
        options["softcap"] = CAP
    elif problem.case.kind not in ("full", "causal"):
        return "softmax, windows and softcap only"

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        made = function(q, k, v, **options)
        return made[0] if isinstance(made, tuple) else made

    return forward


def wants_flex(case: Case, every: bool) -> bool:
    """FlexAttention compiles for seconds: only where the published table has it, unless `every`."""
    return every or case.kind not in ("full", "causal") or case.length == 4096 or case.kv_heads != case.heads


def systems(problem: Problem, chosen: list[str], every_flex: bool) -> dict[str, Forward | str]:
    """The chosen systems, each as its forward or the reason why there is none."""
    makers: dict[str, Callable[[], Forward | str]] = {
        "attn_mlir": lambda: ours(problem),
        "attn_mlir_tilelang": lambda: through_tilelang(problem),
        "fa3": lambda: flash(problem, "flash_attn_interface"),
        "fa4": lambda: flash(problem, "flash_attn.cute"),
        "cudnn": lambda: sdpa(problem, SDPBackend.CUDNN_ATTENTION),
        "flash": lambda: sdpa(problem, SDPBackend.FLASH_ATTENTION),
        "flex": lambda: flex(problem) if wants_flex(problem.case, every_flex) else "left out of this row",
    }
    return {name: makers[name]() for name in chosen}
