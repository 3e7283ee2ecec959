"""Causal softmax attention written as an OnlineFunc, with its backward, compiled and compared with PyTorch.

The program is AttentionEngine's quick start. It runs on the GPU where there is one; sizes are such that it takes seconds on a CPU.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from attn_mlir import AttentionEngine, CustomIO, OnlineFunc, SymbolScalar, Var, meta_tensor

D = 128
softmax_scale = 1 / D**0.5
custom_fwd_inputs = CustomIO({})


# elementwise modification of the attention scores
def score_mod(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * softmax_scale


class OnlineSoftmax(OnlineFunc):
    def __init__(self) -> None:
        online_rowscales = {
            "m": SymbolScalar("m", Var("-inf")),
            "r": SymbolScalar("r", Var("0.0")),
        }
        final_rowscales = {
            "lse": SymbolScalar("lse", Var("0.0")),
        }
        super().__init__(online_rowscales, final_rowscales, custom_fwd_inputs)

    @staticmethod
    def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        m, r = online_rowscales["m"], online_rowscales["r"]
        m_new = m.max(scores.get_reduce("max"))
        scale_tmp = (m - m_new).exp()
        r = r * scale_tmp

        scores = (scores - m_new).exp()
        r = r + scores.get_reduce("sum")

        new_online_rowscales = {
            "m": m_new,
            "r": r,
        }
        return scores, new_online_rowscales, scale_tmp

    @staticmethod
    def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        o_new = o / online_rowscales["r"]
        lse = online_rowscales["r"].log() + online_rowscales["m"]
        return o_new, {"lse": lse}

    @staticmethod
    def forward(scores: Any, final_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        lse = final_rowscales["lse"]
        return (scores - lse).exp()

    @staticmethod
    def backward(dp: Any, scores: Any, final_rowscales: Any, doosum_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        dppsum = doosum_rowscales
        return (dp - dppsum) * scores


# mask on the attention scores
def causal_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def make_engine(B: int, H: int, S: int, dtype: torch.dtype) -> AttentionEngine:
    """The runtime attention op."""
    qkv_meta = tuple(meta_tensor(B, H, S, D, dtype=dtype) for _ in "qkv")
    return AttentionEngine(qkv_meta, custom_fwd_inputs, score_mod=score_mod, block_mask=causal_mask, online_func=OnlineSoftmax())


def finish() -> None:
    """Waits for what a GPU computes."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(run: Callable[[], Any], repeats: int = 3) -> float:
    """The shortest time of a few runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        finish()
        times.append(time.perf_counter() - start)
    return min(times)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], help="default: float16 on a GPU, else float32")
    options = parser.parse_args(argv)
    device, name = options.device, options.dtype or ("float32" if options.device == "cpu" else "float16")
    B, H, S, dtype = 1, options.heads, options.length, getattr(torch, name)

    torch.manual_seed(0)
    q, k, v = (torch.randn(B, S, H, D, dtype=dtype, device=device, requires_grad=True) for _ in "qkv")
    mod = make_engine(B, H, S, dtype)
    start = time.perf_counter()
    out = mod(q, k, v)
    out.backward(torch.ones_like(out))
    finish()
    first = time.perf_counter() - start

    # In float64 PyTorch keeps all scores: of long sequences just the first and the last head are compared.
    every = slice(None)
    compared = every if H * S * S <= 1 << 28 else [0, H - 1]

    def reference(dtype: torch.dtype, heads: Any) -> list[torch.Tensor]:
        """The result and the gradients of PyTorch's attention."""
        inputs = [x.detach()[:, :, heads].to(dtype).requires_grad_() for x in (q, k, v)]
        query, key, value = (x.transpose(1, 2) for x in inputs)
        o = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
        return [o.detach(), *torch.autograd.grad(o, inputs, torch.ones_like(o))]

    def forward() -> torch.Tensor:
        return mod(q.detach(), k.detach(), v.detach())

    def forward_and_backward() -> tuple[torch.Tensor, ...]:
        o = mod(q, k, v)
        return torch.autograd.grad(o, (q, k, v), torch.ones_like(o))

    exact, theirs = reference(torch.float64, compared), reference(dtype, compared)
    where = f"{torch.get_num_threads()} threads" if device == "cpu" else torch.cuda.get_device_name(device)
    print(f"causal softmax attention, B={B} H={H} S={S} D={D} {name}, {where}")
    print(f"  first call and its backward, with compiling: {first:.2f} s")
    print(f"  time: forward {seconds(forward) * 1e3:.1f} ms, forward and backward {seconds(forward_and_backward) * 1e3:.1f} ms")
    print(f"  scaled_dot_product_attention, forward and backward: {seconds(lambda: reference(dtype, every)) * 1e3:.1f} ms")
    for name, x, y, wanted in zip(("o", "dq", "dk", "dv"), (out.detach(), q.grad, k.grad, v.grad), theirs, exact, strict=True):
        ours = largest(None if x is None else x[:, :, compared], wanted)
        print(f"  max error of {name} against float64: attn_mlir {ours:.2e}   PyTorch {largest(y, wanted):.2e}")


def largest(x: torch.Tensor | None, wanted: torch.Tensor) -> float:
    """The largest difference."""
    return torch.inf if x is None else (x.double() - wanted).abs().max().item()


if __name__ == "__main__":
    main()
