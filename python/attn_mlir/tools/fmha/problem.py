"""The tensors of a run of attn-fmha, and the attention that is asked for."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import attn_mlir
from attn_mlir.backends import tensors_of
from attn_mlir.tools.fmha.options import FmhaOptions

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
_ORDER = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3)}


@dataclass(frozen=True)
class FmhaProblem:
    """Inputs on the device. q, k, v and `grad` (of o) are in the layouts asked for; bias and slopes as -bias has them."""

    options: FmhaOptions
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    grad: torch.Tensor
    bias: torch.Tensor | None
    """[1 or B, 1 or H, Sq, Skv]."""
    slopes: torch.Tensor | None
    """[1 or B, H], float32."""

    @property
    def leaves(self) -> list[torch.Tensor]:
        """What gradients are taken of."""
        return [self.q, self.k, self.v, *([self.bias] if self.options.bias_gradient and self.bias is not None else [])]

    def call(self) -> tuple[torch.Tensor, ...]:
        """The attention: o, and lse where it is asked for."""
        made = self._attention()(self.q, self.k, self.v)
        return made if isinstance(made, tuple) else (made,)

    def _attention(self) -> Callable[..., Any]:
        options = self.options
        layout: Any = options.in_layout if options.in_layout == options.out_layout else (options.in_layout, options.out_layout)
        given: dict[str, Any] = {
            **self.functions(),
            "scale": options.scale,
            "layout": layout,
            "return_lse": options.lse,
            "deterministic": options.deterministic,
            "device": options.device,
        }
        if options.dropout:
            pair = options.dropout_seed
            given["dropout_p"] = options.dropout
            given["dropout_seed"] = torch.tensor(pair, device=self.q.device) if options.dropout_on_device else pair
        return lambda q, k, v: attn_mlir.attention(q, k, v, **given)

    def functions(self) -> dict[str, Any]:
        """The functions that the options ask for, as `attention` takes them."""
        mask = None if self.options.mask == "0" else attn_mlir.masks.parse(self.options.mask)
        score = score_mod(self.options.soft_cap, self.bias, self.slopes, self.options.mask)
        return {"row": attn_mlir.softmax, "score_mod": score, "mask_mod": mask}


def score_mod(soft_cap: float, bias: torch.Tensor | None, slopes: torch.Tensor | None, mask: str) -> Callable[..., Any] | None:
    """The cap first, then the bias, as CK has them."""
    mods = []
    if soft_cap:
        mods.append(attn_mlir.mods.softcap(soft_cap))
    if bias is not None:
        mods.append(attn_mlir.mods.bias(bias))
    if slopes is not None:
        mods.append(attn_mlir.mods.alibi_with_mask(slopes, mask))
    if not mods:
        return None

    def all_mods(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        for mod in mods:
            score = mod(score, b, h, q_idx, kv_idx)
        return score

    return all_mods


def make(options: FmhaOptions) -> FmhaProblem:
    """Random tensors, the same for the same seed on every device."""
    o = options
    generator = torch.Generator()
    generator.seed() if o.seed == 0 else generator.manual_seed(o.seed)
    device = tensors_of(o.device)

    def tensor(layout: str, *shape: int) -> torch.Tensor:
        ordered = [shape[place] for place in _ORDER[layout]]
        return _filled(o.init, ordered, generator, o.backward).to(device, DTYPES[o.precision])

    q = tensor(o.in_layout, o.batch, o.heads, o.q_len, o.head_dim)
    k = tensor(o.in_layout, o.batch, o.kv_heads, o.kv_len, o.head_dim)
    if o.column_major:
        v = tensor(o.in_layout, o.batch, o.kv_heads, o.value_dim, o.kv_len)
        v = v.transpose(2, 3) if o.in_layout == "bhsd" else v.permute(0, 3, 2, 1)
    else:
        v = tensor(o.in_layout, o.batch, o.kv_heads, o.kv_len, o.value_dim)
    bias = slopes = None
    if o.bias.kind == "e":
        sizes = (o.batch if o.bias.rank > 1 else 1, o.heads if o.bias.rank > 0 else 1, o.q_len, o.kv_len)
        bias = tensor("bhsd", *sizes)
    if o.bias.kind == "a":
        slopes = attn_mlir.mods.alibi_slopes(o.heads, device).expand(o.batch if o.bias.rank else 1, -1).contiguous()
    grad = tensor(o.out_layout, o.batch, o.heads, o.q_len, o.value_dim)
    problem = FmhaProblem(o, q, k, v, grad, bias, slopes)
    if o.backward:
        for leaf in problem.leaves:
            leaf.requires_grad_()
    return problem


def _filled(init: str, shape: Sequence[int], generator: torch.Generator, backward: bool) -> torch.Tensor:
    """Values as CK's examples draw them."""
    if init == "tf":
        return torch.arange(math.prod(shape), dtype=torch.float32).cos().reshape(*shape)
    if init == "ui":
        largest = 2 if backward else 3
        return torch.randint(-largest, largest + 1, tuple(shape), generator=generator).float()
    if init == "uf":
        return torch.rand(*shape, generator=generator)
    normal = torch.randn(*shape, generator=generator)
    return normal * math.sqrt(3.0) if init == "nf" else (normal * math.sqrt(3.0)).round()
