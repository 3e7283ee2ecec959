"""attention_autotuner's softmax attention on its descriptor of an A100, compared with PyTorch in float64.

It runs on the GPU where there is one, whichever that is, else on the CPU; with `causal` and gradients, which theirs has not.
"""

import argparse
from collections.abc import Sequence

import torch

import attn_mlir.compat  # noqa: F401
from arch import A100
from ops.attention_interface import flash_attn_func


def main(argv: Sequence[str] | None = None) -> int:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    found = parser.parse_args(argv)
    batch, heads, seqlen_q, seqlen_kv, dim_qk, dim_v = 1, 4, found.length, found.length, 128, 64
    device, dtype = torch.device(found.device), torch.float16 if found.device == "cuda" else torch.float32
    torch.manual_seed(0)

    device_type = A100()
    q = torch.randn(batch, heads, seqlen_q, dim_qk, device=device, dtype=dtype)
    k = torch.randn(batch, heads, seqlen_kv, dim_qk, device=device, dtype=dtype)
    v = torch.randn(batch, heads, seqlen_kv, dim_v, device=device, dtype=dtype)
    o = flash_attn_func(q, k, v, device_type)

    leaves = q1, k1, v1 = [x.clone().requires_grad_() for x in (q, k, v)]
    o_causal = flash_attn_func(q1, k1, v1, device_type, causal=True)
    made = [o, o_causal, *torch.autograd.grad(o_causal.sum(), leaves)]

    exact = q64, k64, v64 = [x.double().requires_grad_() for x in (q, k, v)]
    known = [torch.nn.functional.scaled_dot_product_attention(q64, k64, v64, is_causal=causal) for causal in (False, True)]
    known += torch.autograd.grad(known[1].sum(), exact)
    errors = [((x.double() - y).norm() / y.norm()).item() for x, y in zip(made, known, strict=True)]
    print("relative errors of o, o (causal), dq, dk, dv:", ", ".join(f"{error:.1e}" for error in errors))
    return 0 if max(errors) < (3e-3 if dtype == torch.float16 else 1e-5) else 1


if __name__ == "__main__":
    raise SystemExit(main())
