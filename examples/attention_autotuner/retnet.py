"""attention_autotuner's parallel retention on its descriptor of an RTX 4090, forward and backward, compared with float64.

It runs on the GPU where there is one, whichever that is, else on the CPU.
"""

import argparse
from collections.abc import Sequence

import torch

import attn_mlir.compat  # noqa: F401
from arch import RTX4090
from ops.retnet_interface import RetNetAttnFunc


def main(argv: Sequence[str] | None = None) -> int:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    found = parser.parse_args(argv)
    batch, heads, seqlen_q, seqlen_kv, dim_qk, dim_v = 1, 4, found.length, found.length, 64, 128
    device, dtype = torch.device(found.device), torch.float16 if found.device == "cuda" else torch.float32
    torch.manual_seed(0)

    device_type = RTX4090()
    q = (torch.randn(batch, heads, seqlen_q, dim_qk, device=device, dtype=dtype) * dim_qk**-0.5).requires_grad_()
    k = torch.randn(batch, heads, seqlen_kv, dim_qk, device=device, dtype=dtype).requires_grad_()
    v = torch.randn(batch, heads, seqlen_kv, dim_v, device=device, dtype=dtype).requires_grad_()
    mask = torch.randn(heads, seqlen_q, seqlen_kv, device=device, dtype=dtype)
    o = RetNetAttnFunc(q, k, v, mask, device_type)
    do = torch.randn(batch, heads, seqlen_q, dim_v, device=device, dtype=dtype)
    o.backward(do)

    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    s = (exact[0] @ exact[1].mT) * mask.double()
    known = (s / s.abs().sum(-1, keepdim=True).clamp(min=1).detach()) @ exact[2]
    gradients = torch.autograd.grad(known, exact, do.double())
    pairs = zip((o, q.grad, k.grad, v.grad), (known, *gradients), strict=True)
    errors = [((x.double() - y).norm() / y.norm()).item() if x is not None else torch.inf for x, y in pairs]
    print("relative errors of o, dq, dk, dv:", ", ".join(f"{error:.1e}" for error in errors))
    return 0 if max(errors) < (3e-3 if dtype == torch.float16 else 1e-5) else 1


if __name__ == "__main__":
    raise SystemExit(main())
