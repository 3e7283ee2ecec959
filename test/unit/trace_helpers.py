"""Traces functions and compares what the IR computes with PyTorch running the very same functions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, Traced, trace
from attn_mlir.mlir import ir
from attn_mlir.reference.evaluator import evaluate
from contexts import loaded_context

B, HEADS, LENGTH = 2, 3, 9


def identity(s: Any) -> Any:
    return s


def run(program: Definition, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float = 1.0) -> tuple[Traced, list[torch.Tensor]]:
    """Traces `program` and evaluates its IR in float64."""
    traced = trace(program, Inputs("f64", q.shape[-1], v.shape[-1]))
    captures = Entry(traced).captures(Scan(program.functions), scale)
    return traced, evaluate_text(traced.text, q, k, v, captures)


def evaluate_text(text: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, captures: list[Any]) -> list[torch.Tensor]:
    """What the evaluator makes of a module for torch tensors."""
    context = loaded_context()
    with context:
        module = ir.Module.parse(text)
    results = evaluate(module, [as_array(x) for x in (q, k, v, *captures)])
    return [torch.from_numpy(np.asarray(result)) for result in results]


def as_array(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return (x.double() if x.dtype == torch.bfloat16 else x).detach().numpy()


def grid(q_len: int = LENGTH, kv_len: int = LENGTH, heads: int = HEADS) -> list[torch.Tensor]:
    """b, h, q_idx and kv_idx as tensors that broadcast to [B, H, Sq, Skv]."""
    sizes = (B, heads, q_len, kv_len)
    return [torch.arange(size).view(*(size if i == j else 1 for j in range(4))) for i, size in enumerate(sizes)]


def scores(seed: int = 0) -> torch.Tensor:
    """Scores [B, H, S, S], as q: with k the identity matrix, q . k gives them back."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, HEADS, LENGTH, LENGTH, generator=generator, dtype=torch.float64)


def eye() -> torch.Tensor:
    return torch.eye(LENGTH, dtype=torch.float64).expand(B, HEADS, LENGTH, LENGTH)


def traced_scores(score_mod: Callable[..., Any], s: torch.Tensor | None = None) -> torch.Tensor:
    """The changed scores, as the IR computes them."""
    return run(Definition(identity, score_mod, scale=1.0), scores() if s is None else s, eye(), eye())[1][0]


def eager_scores(score_mod: Callable[..., Any], s: torch.Tensor | None = None) -> torch.Tensor:
    """The changed scores, as PyTorch computes them."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        result = score_mod(scores() if s is None else s, *grid())
    finally:
        torch.set_default_dtype(before)
    result = result if isinstance(result, torch.Tensor) else torch.tensor(result)
    return result.double().broadcast_to(B, HEADS, LENGTH, LENGTH)


def check_score(score_mod: Callable[..., Any], s: torch.Tensor | None = None, tolerance: float = 1e-12) -> None:
    """Compares the two."""
    torch.testing.assert_close(traced_scores(score_mod, s), eager_scores(score_mod, s), rtol=tolerance, atol=tolerance, equal_nan=True)


def traced_mask(mask_mod: Callable[..., Any]) -> torch.Tensor:
    """The mask as the IR computes it: identity weights of ones."""
    ones = torch.ones(B, HEADS, LENGTH, LENGTH, dtype=torch.float64)
    return run(Definition(lambda s: s * 0 + 1.0, mask_mod=mask_mod, scale=1.0), ones, eye(), eye())[1][0].bool()


def check_mask(mask_mod: Callable[..., Any]) -> None:
    """Compares the traced mask with PyTorch's."""
    expected = torch.as_tensor(mask_mod(*grid())).broadcast_to(B, HEADS, LENGTH, LENGTH)
    assert torch.equal(traced_mask(mask_mod), expected)
    assert expected.any() and not expected.all()
