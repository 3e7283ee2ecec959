"""Small linear attentions for nvidia_sanitize.py: scans both ways, with products and states, segments, sequences side by side, mods."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scans:
    """`size`: batch, heads of v, heads of q and k, positions, K, V. `ends`: where sequences end that lie side by side.

    `channels`: each of k has decays of its own. `steps`: rows of v have factors, outputs a skip, and both need gradients.
    """

    name: str
    size: tuple[int, int, int, int, int, int]
    segment: int = 0
    ends: tuple[int, ...] = ()
    mods: bool = False
    channels: bool = False
    steps: bool = False

    def run(self, device: str) -> tuple[list[Any], float]:
        """o, the final state and all gradients in bf16; rms(error of o) / rms(o), against the recurrence in float64."""
        import torch

        import attn_mlir

        generator = torch.Generator(device).manual_seed(0)
        batch, heads, key_heads, length, keys, values = self.size

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=device)

        q, k, v = (normal(batch, h, length, d).bfloat16() for h, d in ((key_heads, keys), (key_heads, keys), (heads, values)))
        g = -0.1 * normal(batch, heads, length, *([keys] if self.channels else [])).abs()
        state = normal(len(self.ends) or batch, heads, keys, values)
        leaves = [x.requires_grad_() for x in (q, k, v, g, state)]
        options: dict[str, Any] = {"segment_size": self.segment, "output_final_state": True}
        if self.ends:
            options["cu_seqlens"] = torch.tensor([0, *self.ends], device=device, dtype=torch.int32)
        if self.mods:
            options |= {"v_mod": lambda x, b, h, t: x * (1 + 0.5 * (t % 2)), "k_mod": lambda x: torch.relu(x)}
        dt, skip = ((0.5 + normal(batch, heads, length).abs()).requires_grad_() for _ in range(2))
        if self.steps:
            leaves += [dt, skip]
            options |= {"v_mod": lambda x, b, h, t: x * dt[b, h, t], "skip_mod": lambda b, h, t: skip[b, h, t]}
        o, final = attn_mlir.linear_attention(q, k, v, g, initial_state=state, scale=keys**-0.5, **options)
        gradients = torch.autograd.grad([o, final], leaves, [torch.ones_like(o), torch.ones_like(final)])
        behind = skip.detach().double().unsqueeze(3) * v.detach().double() if self.steps else 0.0
        if self.mods:
            k, v = torch.relu(k), v * (1 + 0.5 * (torch.arange(length, device=device) % 2)).reshape(1, 1, -1, 1)
        if self.steps:
            v = v * dt.unsqueeze(3)
        wanted = recurrence([x.detach().double() for x in (q * keys**-0.5, k, v, g, state)], self.ends)
        wanted = wanted + behind
        return [o, final, *gradients], ((o.double() - wanted).norm() / wanted.norm()).item()


def recurrence(inputs: Sequence[Any], ends: Sequence[int]) -> Any:
    """o, position by position."""
    import torch

    q, k, v, g, states = inputs
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
    rows, state = [], states[:1] if ends else states
    for t in range(v.shape[2]):
        if t in ends:
            state = states[sum(end <= t for end in ends)].unsqueeze(0)
        decay = g[:, :, t].exp()
        state = (decay.unsqueeze(3) if g.dim() == 4 else decay[..., None, None]) * state + k[:, :, t].unsqueeze(3) * v[:, :, t].unsqueeze(2)
        rows.append((q[:, :, t].unsqueeze(2) @ state).squeeze(2))
    return torch.stack(rows, 2)


_STEPS = ((300, 128, 64), (130, 128, 128), (63, 64, 256))
"""Positions, K and V."""


def shapes() -> list[Scans]:
    """All columns that the emitter of scans knows, with tails; segments, sequences of which one is empty, heads that share, mods."""
    found = [Scans(f"linear 300 {keys}:{values}", (1, 2, 2, 300, keys, values)) for keys in (64, 128, 256) for values in (64, 128, 256)]
    return [
        *found,
        Scans("linear segments 1100 64:64", (1, 2, 2, 1100, 64, 64), segment=512),
        Scans("linear segments 1100 128:128", (1, 2, 1, 1100, 128, 128), segment=512),
        Scans("linear packed 64:128", (1, 2, 2, 300, 64, 128), ends=(64, 101, 101, 165, 300)),
        Scans("linear packed 128:128", (1, 2, 2, 300, 128, 128), ends=(64, 101, 101, 165, 300)),
        Scans("linear mods 300 128:64", (1, 4, 1, 300, 128, 64), mods=True),
        *(Scans(f"linear steps {t} {keys}:{values}", (1, 4, 1, t, keys, values), steps=True) for t, keys, values in _STEPS),
        Scans("linear channels 300 128:128", (1, 2, 1, 300, 128, 128), channels=True),
        Scans("linear channels packed 64:64", (1, 2, 2, 300, 64, 64), ends=(64, 101, 101, 165, 300), channels=True),
    ]
