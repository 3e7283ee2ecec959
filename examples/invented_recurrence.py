"""A recurrence of one's own: attn_mlir derives its chunked form, its backward and its decoding step.

Each channel of the state forgets at its own rate, faster while a gate is open; what is written is squashed and weakened by the gate.
Nobody has written a kernel for that. Here the rates of such a memory are found again from nothing but its outputs, by gradients
through 256 steps; then it decodes step by step.

    python examples/invented_recurrence.py [--steps 120]
"""

import argparse
from typing import Any

import torch

import attn_mlir


class Memory(torch.nn.Module):
    """o_t = q_t . S_t with S_t[d] = exp(-softplus(rate[d] + boost gate_t)) S_(t-1)[d] + (1 - gate_t) k_t[d] tanh(v_t)."""

    def __init__(self, heads: int, channels: int) -> None:
        super().__init__()
        self.rate = torch.nn.Parameter(torch.randn(heads, channels))
        self.boost = torch.nn.Parameter(torch.randn(heads).abs())

    def functions(self, gate: torch.Tensor) -> dict[str, Any]:
        """The recurrence, in four lines of plain Python; what they capture has gradients."""
        rate, boost = self.rate, self.boost
        return {
            "decay_mod": lambda g, b, h, t, d: -torch.nn.functional.softplus(rate[h, d] + boost[h] * gate[b, h, t]),
            "k_mod": lambda x, b, h, t: x * (1.0 - gate[b, h, t]),
            "v_mod": lambda x: torch.tanh(x),
        }

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return attn_mlir.linear_attention(q, k, v, **self.functions(gate))

    def step(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One position, [B, H, 1, D], and the state after it."""
        return attn_mlir.linear_attention_step(q, k, v, state=state, **self.functions(gate))


def identify(steps: int, length: int = 256) -> tuple[list[float], Memory, Memory]:
    """Fits a memory to another one's outputs; returns the losses and both."""
    torch.manual_seed(0)
    teacher, student = Memory(2, 16), Memory(2, 16)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        q, k, v = torch.randn(3, 4, 2, length, 16)
        gate = torch.rand(4, 2, length)
        with torch.no_grad():
            wanted = teacher(q, k, v, gate)
        loss = (student(q, k, v, gate) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, student, teacher


@torch.no_grad()
def decoding_error(memory: Memory, length: int = 32) -> float:
    """The largest difference between decoding step by step and the whole sequence at once."""
    q, k, v = torch.randn(3, 1, 2, length, 16)
    gate = torch.rand(1, 2, length)
    state, outputs = None, []
    for t in range(length):
        now = slice(t, t + 1)
        o, state = memory.step(q[:, :, now], k[:, :, now], v[:, :, now], gate[:, :, now], state)
        outputs.append(o)
    return (torch.cat(outputs, 2) - memory(q, k, v, gate)).abs().max().item()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args(argv)
    losses, student, teacher = identify(options.steps)
    print(f"loss: {losses[0]:.3f} before, {losses[-1]:.2e} after {options.steps} steps")
    print(f"median difference of a rate: {(student.rate - teacher.rate).abs().median().item():.1e}")
    print(f"decoding step by step differs by {decoding_error(student):.1e}")
    print(attn_mlir.LinearAttention(**student.functions(torch.rand(1, 2, 8))).explain())


if __name__ == "__main__":
    main()
