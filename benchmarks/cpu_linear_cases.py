"""What the benchmark of linear attention on the CPU measures, and the chunked formula in eager PyTorch."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Case:
    """q and k [B, Hq, T, K], v [B, H, T, V], log decays [B, H, T], or [B, H, T, K] with `channels`."""

    kind: str
    heads: int
    groups: int
    length: int
    keys: int
    values: int
    channels: bool = False
    longest_eager: int = 128
    """The longest chunk that the formula has memory for."""

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.kind} B1 H{self.heads} T{self.length} K{self.keys} V{self.values}"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of o."""
        return (1, self.heads, self.length, self.values)

    def inputs(self) -> list[torch.Tensor]:
        """q, k, v and log decays."""
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        q, k = (normal(1, self.groups, self.length, self.keys) for _ in range(2))
        v = normal(*self.output_shape)
        channels = (self.keys,) if self.channels else ()
        decay = torch.nn.functional.logsigmoid(normal(1, self.heads, self.length, *channels)) / 16
        if self.kind == "retention":
            slopes = torch.log1p(-(2.0 ** (-5.0 - torch.arange(self.heads))))
            decay = slopes[None, :, None].expand(1, self.heads, self.length).contiguous()
        return [q * self.keys**-0.5, k, v, decay]

    def flops(self, measure: str) -> float:
        """Of the products with the state alone, which no chunk can save: two in the forward pass, three times two in the backward."""
        scans = {"forward": 1, "backward": 3, "both": 4}[measure]
        return 4.0 * scans * self.heads * self.length * self.keys * self.values

    def bytes(self, measure: str) -> float:
        """Of the inputs and outputs, gradients and what they are made of."""
        decay = self.heads * self.length * (self.keys if self.channels else 1)
        inputs = 2 * self.groups * self.length * self.keys + self.heads * self.length * self.values + decay
        o = self.heads * self.length * self.values
        return 4.0 * {"forward": inputs + o, "backward": 2 * inputs + o, "both": 3 * inputs + 2 * o}[measure]


def cases(quick: bool) -> list[Case]:
    """Mamba-2, simple GLA, retention with wide heads, GLA, long sequences of one head; with `quick` two small ones."""
    if quick:
        return [Case("mamba-2", 4, 1, 64, 16, 16), Case("gla", 2, 2, 64, 16, 16, True, 16)]
    return [
        Case("mamba-2", 24, 1, 2048, 128, 64),
        Case("simple gla", 8, 8, 2048, 128, 128),
        Case("retention", 4, 4, 2048, 256, 512),
        Case("gla", 4, 4, 2048, 128, 128, True, 32),
        Case("simple gla", 1, 1, 8192, 64, 64),
        Case("simple gla", 1, 1, 32768, 64, 64),
    ]


def chunked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, chunk: int) -> torch.Tensor:
    """Linear attention in chunks of `chunk` positions, which divides T: what a chunk's own positions give, and what the state gives."""
    batch, heads, length, width = v.shape
    shape = (batch, heads, length // chunk, chunk, -1)
    q, k = (x.repeat_interleave(heads // x.shape[1], 1).reshape(shape) for x in (q, k))
    v, g = v.reshape(shape), decay.reshape(shape).cumsum(3)
    absent = torch.ones(chunk, chunk, dtype=torch.bool).triu(1)
    if decay.dim() == 3:
        weights = (g - g.transpose(3, 4)).masked_fill(absent, -torch.inf).exp()
        scores = (q @ k.transpose(3, 4)) * weights
    else:
        weights = (g.unsqueeze(4) - g.unsqueeze(3)).masked_fill(absent[:, :, None], -torch.inf).exp()
        scores = torch.einsum("bhntk,bhnsk,bhntsk->bhnts", q, k, weights)
    total = g[:, :, :, -1:]
    added = (k * (total - g).exp()).transpose(3, 4) @ v
    kept = total.exp().transpose(3, 4)
    state, before = torch.zeros(batch, heads, q.shape[-1], width, dtype=q.dtype), []
    for n in range(length // chunk):
        before.append(state)
        state = state * kept[:, :, n] + added[:, :, n]
    o = scores @ v + (q * g.exp()) @ torch.stack(before, 2)
    return o.reshape(batch, heads, length, width)
