"""Command line and comparison of AttentionEngine's programs: results and gradients against a formula in float64."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""The largest difference, relative to the size of what is expected (root mean squares)."""


def options(argv: Sequence[str] | None, program: str | None, **sizes: int) -> Any:
    """The options of a program's command line; `sizes` are those of a CPU's default."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=program)
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size, help=f"default: {size}")
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float16" if on_gpu else "float32")
    found = parser.parse_args(argv)
    found.dtype = getattr(torch, found.dtype)
    torch.manual_seed(0)
    return found


def normal(found: Any, *shape: int) -> torch.Tensor:
    """An input of the program."""
    return torch.randn(*shape, dtype=found.dtype, device=found.device)


def dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    weights: Callable[[torch.Tensor], torch.Tensor],
    keep: torch.Tensor | None = None,
    absent: float = -torch.inf,
) -> torch.Tensor:
    """sum_j weights(q . k)_j v_j for tensors [B, S, H, D], from all scores; positions that are not kept have the weight of `absent`."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT
    return (weights(scores if keep is None else scores.masked_fill(~keep, absent)) @ v).transpose(1, 2)


def causal(length: int, device: Any) -> torch.Tensor:
    """The lower triangle."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def compare(
    mod: Callable[..., torch.Tensor],
    formula: Callable[..., torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    constants: Sequence[torch.Tensor] = (),
    backward: bool = True,
) -> int:
    """Prints how far `mod` is from `formula`, and with `backward` their gradients of `inputs`; returns 1 where that is too far.

    `constants` are further inputs, without gradients.
    """
    leaves = [x.detach().clone().requires_grad_(backward) for x in inputs.values()]
    exact = [x.detach().double().requires_grad_(backward) for x in leaves]
    o, known = mod(*leaves, *constants), formula(*exact, *[x.double() if x.is_floating_point() else x for x in constants])
    pairs = {"o": (o, known)}
    if backward:
        do = torch.randn_like(o)
        made, wanted = torch.autograd.grad(o, leaves, do), torch.autograd.grad(known, exact, do.double())
        pairs |= {f"d{name}": pair for name, pair in zip(inputs, zip(made, wanted, strict=True), strict=True)}
    errors = {name: ((x.double() - y).norm() / y.norm()).item() for name, (x, y) in pairs.items()}
    tolerance = TOLERANCES[leaves[0].dtype]
    wrong = [name for name, error in errors.items() if not error <= tolerance]
    print(", ".join(f"{name} {error:.1e}" for name, error in errors.items()), f"(relative errors, at most {tolerance:.0e})")
    if wrong:
        print(f"wrong: {', '.join(wrong)}")
    return 1 if wrong else 0
