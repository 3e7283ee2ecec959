"""MeanFlow trains with the total derivative of a network along a flow: a `jvp` through attention, here with a window and a soft cap.

MeanFlow (arXiv 2505.13447) regresses u(z, r, t) on v - (t - r) (v . du/dz + du/dt). The bracket is one forward-mode derivative of
the network; fused attention kernels have none, so it is usually computed with attention written out, S x S. Here it is one
pass over keys.
"""

import math
import time
from collections.abc import Callable

import torch

import attn_mlir

WINDOW, CAP = 128, 20.0
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def window(b, h, q_idx, kv_idx):
    return abs(q_idx - kv_idx) <= WINDOW


def softcap(score, b, h, q_idx, kv_idx):
    return CAP * torch.tanh(score / CAP)


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention with a sliding window and a soft cap."""
    return attn_mlir.attention(q, k, v, score_mod=softcap, mask_mod=window)


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same, as a formula on S x S scores."""
    s = CAP * torch.tanh(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) / CAP)
    position = torch.arange(q.shape[-2])
    far = (position[:, None] - position).abs() > WINDOW
    return torch.softmax(s.masked_fill(far, -torch.inf), -1) @ v


class Block(torch.nn.Module):
    """u(z, r, t): attention between two projections, modulated by the two times."""

    def __init__(self, width: int, heads: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = heads
        self.time = torch.nn.Linear(2, width, dtype=dtype)
        self.qkv = torch.nn.Linear(width, 3 * width, dtype=dtype)
        self.out = torch.nn.Linear(width, width, dtype=dtype)

    def forward(self, attend: Attend, z: torch.Tensor, r: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        x = z + torch.tanh(self.time(torch.stack([r, t], -1)))[:, None]
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2))


def total_derivative(block: Block, attend: Attend, z: torch.Tensor, v: torch.Tensor, r: torch.Tensor, t: torch.Tensor):
    """u and v . du/dz + du/dt."""
    return torch.func.jvp(lambda z, t: block(attend, z, r, t), (z, t), (v, torch.ones_like(t)))


def run(length: int, dtype: torch.dtype) -> tuple[float, float, float]:
    """The largest difference of the derivatives relative to their size, and the seconds that both ways take."""
    torch.manual_seed(0)
    block = Block(256, 4, dtype).requires_grad_(False)
    z, v = (torch.randn(2, length, 256, dtype=dtype) for _ in range(2))
    r, t = torch.rand(2, dtype=dtype), torch.rand(2, dtype=dtype)
    seconds, results = [], []
    for attend in (fused, written_out):
        total_derivative(block, attend, z, v, r, t)
        start = time.perf_counter()
        results.append(total_derivative(block, attend, z, v, r, t)[1])
        seconds.append(time.perf_counter() - start)
    return float((results[0] - results[1]).abs().max() / results[1].abs().max()), seconds[0], seconds[1]


def main() -> None:
    error, _, _ = run(257, torch.float64)
    print(f"float64, length 257: the derivative along the flow differs by {error:.1e} from that of the formula")
    error, ours, dense = run(2048, torch.float32)
    print(f"float32, length 2048: differs by {error:.1e}; {ours * 1e3:.0f} ms, the formula {dense * 1e3:.0f} ms ({dense / ours:.1f}x)")


if __name__ == "__main__":
    main()
