"""AttentionEngine's linear attention programs: Mamba-2 (with one group and with many), simple GLA and RetNet, compared with float64.

Each program is what its author writes: elementwise functions and the declaration of further inputs. Chunks, state passing and the
backward are derived. They run on the GPU where there is one; sizes are such that it takes seconds on a CPU.

    python examples/linear_attention_engine.py [--program mamba2] [--length 1024]
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from attn_mlir import CustomIO, LinearAttentionEngine, meta_tensor

Example = tuple[LinearAttentionEngine, list[torch.Tensor], Callable[..., tuple[torch.Tensor, ...]]]
B, H = 2, 8


def meta(heads: int, length: int, key_dim: int, value_dim: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Shapes of q, k and v, in the order [B, H, T, D]."""
    return (
        meta_tensor(B, heads, length, key_dim, dtype=dtype),
        meta_tensor(B, heads, length, key_dim, dtype=dtype),
        meta_tensor(B, H, length, value_dim, dtype=dtype),
    )


def inputs(heads: int, length: int, key_dim: int, value_dim: int) -> list[torch.Tensor]:
    """q, k and v."""
    return [torch.randn(B, heads, length, key_dim), torch.randn(B, heads, length, key_dim), torch.randn(B, H, length, value_dim)]


def mamba2_ngroup1(length: int, dtype: torch.dtype) -> Example:
    """Mamba-2's SSD with one head of C (q) and B (k): the log decay is dt A, values are x dt."""

    def decay_mod(decay: Any, custom_io: Any) -> Any:
        return decay * custom_io.input_tensors["A"]

    def v_mod(v: Any, custom_io: Any) -> Any:
        return v * custom_io.input_tensors["dt"]

    custom_io = CustomIO({"A": (1, "heads"), "dt": ("batch", "heads", "seq_len")})
    mod = LinearAttentionEngine(meta(1, length, 128, 64, dtype), decay_mod=decay_mod, v_mod=v_mod, custom_io=custom_io)
    dt, a = torch.rand(B, H, length) * 0.2, -torch.rand(1, H) - 0.5

    def in_pairs(q: Any, k: Any, v: Any, dt: Any, a: Any, dt_again: Any) -> tuple[torch.Tensor, ...]:
        return q, k, v * dt_again[..., None], dt * a[..., None]

    return mod, [*inputs(1, length, 128, 64), dt, a, dt], in_pairs


def mamba2(length: int, dtype: torch.dtype) -> Example:
    """The same with a head of C and B for every head of x, dt multiplied to B, and sizes declared as numbers."""

    def decay_mod(decay: Any, custom_io: Any) -> Any:
        return decay * custom_io.input_tensors["A"]

    def k_mod(k: Any, custom_io: Any) -> Any:
        return k * custom_io.input_tensors["dt"]

    custom_io = CustomIO({"A": (1, H), "dt": (B, H, length)})
    mod = LinearAttentionEngine(meta(H, length, 128, 64, dtype), decay_mod=decay_mod, k_mod=k_mod, custom_io=custom_io)
    dt, a = torch.rand(B, H, length) * 0.2, -torch.rand(1, H) - 0.5

    def in_pairs(q: Any, k: Any, v: Any, dt: Any, a: Any, dt_again: Any) -> tuple[torch.Tensor, ...]:
        return q, k * dt_again[..., None], v, dt * a[..., None]

    return mod, [*inputs(H, length, 128, 64), dt, a, dt], in_pairs


def simple_gla(length: int, dtype: torch.dtype) -> Example:
    """Gated retention: the decay comes as its logarithm, one for each head and step."""
    scale = 1 / 128**0.5
    mod = LinearAttentionEngine(meta(H, length, 128, 128, dtype), q_mod=lambda q, custom_io: q * scale)
    gate = torch.nn.functional.logsigmoid(torch.randn(B, H, length) + 2.0)
    return mod, [*inputs(H, length, 128, 128), gate], lambda q, k, v, g: (q * scale, k, v, g)


def retention_linear(length: int, dtype: torch.dtype) -> Example:
    """RetNet: head h decays by gamma = 1 - 2^(-5-h), of which the function takes the logarithm."""
    scale = 1 / 128**0.5
    mod = LinearAttentionEngine(
        meta(H, length, 128, 256, dtype), q_mod=lambda q, custom_io: q * scale, decay_mod=lambda decay, custom_io: decay.log()
    )
    gamma = (1 - torch.exp2(-5.0 - torch.arange(H))).view(1, H, 1).expand(B, H, length).contiguous()
    return mod, [*inputs(H, length, 128, 256), gamma], lambda q, k, v, g: (q * scale, k, v, g.log())


PROGRAMS = {"mamba2_ngroup1": mamba2_ngroup1, "mamba2": mamba2, "simple_gla": simple_gla, "retention_linear": retention_linear}


def all_pairs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """The same as a sum over all pairs of positions, which takes T x T weights."""
    total = g.cumsum(2)
    between = total.unsqueeze(3) - total.unsqueeze(2)
    past = torch.ones(between.shape[2:], dtype=torch.bool, device=g.device).tril()
    return ((q @ k.mT) * between.masked_fill(~past, -torch.inf).exp()) @ v


def run(name: str, length: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """Runs one program and its backward; returns the relative errors of o and of the gradients of all inputs, in their order."""
    torch.manual_seed(0)
    mod, given, in_pairs = PROGRAMS[name](length, dtype)
    leaves = [x.to(device, dtype if i < 3 else None).clone().requires_grad_() for i, x in enumerate(given)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    o, known = mod(*leaves), all_pairs(*in_pairs(*exact))
    weight = torch.randn_like(o)
    made, wanted = torch.autograd.grad(o, leaves, weight), torch.autograd.grad(known, exact, weight.double())
    names = ["q", "k", "v", "decay", "A", "dt"]
    pairs = {"o": (o, known)} | {f"d{n}": pair for n, pair in zip(names, zip(made, wanted, strict=True), strict=False)}
    return {n: ((x.double() - y).norm() / y.norm()).item() for n, (x, y) in pairs.items()}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", choices=list(PROGRAMS), help="default: all of them")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(argv)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    for name in [options.program] if options.program else PROGRAMS:
        start = time.perf_counter()
        errors = run(name, options.length, options.device, dtype)
        listed = ", ".join(f"{n} {e:.1e}" for n, e in errors.items())
        print(f"{name}, B={B} H={H} T={options.length}, {time.perf_counter() - start:.1f} s with compiling\n  relative errors: {listed}")


if __name__ == "__main__":
    main()
