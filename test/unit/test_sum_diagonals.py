"""Gradients of tables that are summed along diagonals first, evaluated in float64 and against autograd."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attn_mlir import masks
from attn_mlir.api.rows import softmax
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, trace
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.reference import evaluate
from attn_mlir.registry import registry
from contexts import loaded_context

B, HEADS, SHARED, DIM, SCALE, WIDE = 2, 4, 2, 8, 0.25, 600
Place = Callable[..., tuple[Any, ...]]


def far(q: Any, k: Any) -> Any:
    """Buckets that grow with the distance, as T5's."""
    distance = (q - k).clamp(min=0)
    return torch.where(distance < 4, distance, 2 + torch.log2(distance.clamp(min=4) + 0.25).floor().long())


SIDES = torch.tensor([0, 2, 1, 3] * (WIDE // 2))
PLACES: dict[str, tuple[tuple[int, ...], Place]] = {
    "buckets": ((HEADS, 16), lambda b, h, q, k: (h, far(q, k))),
    "heads last": ((16, HEADS), lambda b, h, q, k: (far(q, k), h)),
    "both sides": ((HEADS, 32), lambda b, h, q, k: (h, (k > q).long() * 16 + torch.where(k > q, far(k, q), far(q, k)))),
    "of batch entries": ((B, 16), lambda b, h, q, k: (b, far(q, k))),
    "of all heads": ((16,), lambda b, h, q, k: (far(q, k),)),
    "by heads": ((64,), lambda b, h, q, k: (torch.clamp((q - k) * (h + 1), 0, 63),)),
    "clamped": ((HEADS, 9), lambda b, h, q, k: (h, (q - k).clamp(-4, 4) + 4)),
    "counted from the end": ((HEADS, 2 * WIDE), lambda b, h, q, k: (h, q - k)),
    "through another table": ((HEADS, 4), lambda b, h, q, k: (h, SIDES[q - k + WIDE])),
}
MASKS: dict[str, Any] = {
    "all": None,
    "causal": masks.causal(),
    "fully masked rows": lambda b, h, q, k: (q - k >= 3) & (q - k < 40),
}


def gradients(kind: str, mask: str, lengths: tuple[int, int], diagonals: bool) -> tuple[list[torch.Tensor], int, list[torch.Tensor]]:
    """Those that are derived, how many scatters of pairs go along diagonals, and those of autograd."""
    shape, place = PLACES[kind]
    (sq, skv), make = lengths, torch.Generator().manual_seed(5)
    normal = [torch.randn(size, generator=make, dtype=torch.float64) for size in [(B, HEADS, sq, DIM), *[(B, SHARED, skv, DIM)] * 2, shape]]
    do = torch.randn((B, HEADS, sq, DIM), generator=make, dtype=torch.float64)
    table = normal[3]
    score = lambda s, b, h, q, k: s + table[place(b, h, q, k)]  # noqa: E731
    traced = trace(Definition(softmax, score_mod=score, mask_mod=MASKS[mask], scale=SCALE, states=True), Inputs("f16", DIM, DIM))
    more = [WIDE if each.kind != "tensor" else SIDES.numpy() if each.element != "f64" else table.numpy() for each in traced.captures]
    with loaded_context():
        module = ir.Module.parse(traced.text)
        wrt = "+".join(["q", "k", "v", *(f"arg{3 + n}" for n, each in enumerate(traced.captures) if each.element == "f64")])
        text = f"attn-simplify,attn-differentiate{{functions=fwd+bwd wrt={wrt}}},attn-simplify"
        Pipeline.parse(f"{text},attn-sum-diagonals,attn-simplify" if diagonals else text, registry()).run(module)
        count = sum("diagonals" in op.attributes for op in find_all(module.operation, "attn.scatter"))
        given = [*(x.numpy() for x in normal[:3]), *more]
        kept = evaluate(module, given, "attention_fwd")
        derived = evaluate(module, [*given, *kept, do.numpy()], "attention_bwd")
    leaves = [x.clone().requires_grad_() for x in normal]
    at = [torch.arange(n).view([-1 if m == axis else 1 for m in range(4)]) for axis, n in enumerate((B, HEADS, sq, skv))]
    k, v = (x.repeat_interleave(HEADS // SHARED, 1) for x in leaves[1:3])
    with torch.no_grad():
        index = place(*at)
    s = leaves[0] @ k.mT * SCALE + leaves[3][index]
    present = torch.ones(sq, skv, dtype=torch.bool) if MASKS[mask] is None else MASKS[mask](*at)
    some = present.any(-1, keepdim=True)
    o = (s.masked_fill(~present & some, -torch.inf).softmax(-1) * some) @ v
    return [torch.as_tensor(x) for x in derived], count, list(torch.autograd.grad(o, leaves, do))


@pytest.mark.parametrize("lengths", [(1, 1), (17, 5), (5, 127), (130, 131)], ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", PLACES)
def test_sums_along_diagonals_are_those_of_pairs(kind: str, mask: str, lengths: tuple[int, int]) -> None:
    derived, count, right = gradients(kind, mask, lengths, diagonals=True)
    assert count == 1
    for got, want in zip(derived, right, strict=True):
        assert got.shape == want.shape and float((got - want).abs().max()) <= 1e-10


OTHERS: list[Place] = [
    lambda b, h, q, k: (h, q, k),
    lambda b, h, q, k: (h, k),
    lambda b, h, q, k: (h, (q - k) * k),
    lambda b, h, q, k: (h, torch.clamp(q, max=20) - k),
    lambda b, h, q, k: (h, (torch.clamp(q, max=20) > k).long()),
    lambda b, h, q, k: (h, q - torch.clamp(k, max=20)),
]


@pytest.mark.parametrize("place", OTHERS)
def test_other_places_stay(place: Place) -> None:
    """Those of a dense bias, of a number of each key, and of what depends on more than the difference, as that of limited positions."""
    tensor = torch.zeros((2,) * len(place(*torch.zeros(4, dtype=torch.long))), dtype=torch.float64)
    score = lambda s, b, h, q, k: s + tensor[place(b, h, q, k)]  # noqa: E731
    traced = trace(Definition(softmax, score_mod=score, scale=1.0), Inputs("f16", DIM, DIM))
    with loaded_context():
        module = ir.Module.parse(traced.text)
        Pipeline.parse("attn-simplify,attn-differentiate{functions=bwd wrt=arg3 only=true},attn-sum-diagonals", registry()).run(module)
        assert not any("diagonals" in op.attributes for op in find_all(module.operation, "attn.scatter"))
