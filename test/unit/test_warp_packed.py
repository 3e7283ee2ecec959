"""Packed sequences in kernels of the `warp` dialect for Hopper: forward and gradients in the evaluator against float64; how views are
described to copy engines.
"""

from typing import Any

import pytest
import torch

from attn_mlir import attention_varlen, masks
from attn_mlir.backends.nvidia import codegen, driver, pipeline
from attn_mlir.backends.nvidia.emulation import driver as emulation
from attn_mlir.backends.program import prepare_derivative
from generated_code import complaints
from program_texts import text_of
from varlen_cases import offsets

Lengths = tuple[int, ...]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, queries: Lengths, keys: Lengths, causal: bool) -> torch.Tensor:
    """Each sequence by itself, in float64."""
    found = []
    for one, of_keys, of_values in zip(q.split(queries), k.split(keys), v.split(keys), strict=True):
        wide = [x.transpose(0, 1).repeat_interleave(q.shape[1] // x.shape[1], 0) for x in (one, of_keys, of_values)]
        scores = wide[0] @ wide[1].mT / q.shape[2] ** 0.5
        if causal:
            kept = torch.arange(len(one))[:, None] >= torch.arange(len(of_keys))
            scores = scores.masked_fill(~kept, -torch.inf)
        found.append((scores.softmax(-1).nan_to_num(0) @ wide[2]).transpose(0, 1))
    return torch.cat(found)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(("queries", "keys", "causal", "options"), [
    ((5, 130, 0, 77), (5, 130, 0, 77), True, {}),
    ((200, 1, 64), (200, 1, 64), False, {}),
    ((100, 3), (60, 150), True, {}),
    ((5, 130, 0, 300), (5, 130, 0, 300), True, {"deterministic": True}),
], ids=["causal", "all keys", "other keys", "a fixed order"])  # fmt: skip
def test_sequences(dim: int, queries: Lengths, keys: Lengths, causal: bool, options: dict[str, Any]) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = (sum(queries), 2, dim), (sum(keys), 1, dim), (sum(keys), 1, dim), (sum(queries), 2, dim)
    q, k, v, do = (torch.randn(shape, generator=draw).half() for shape in shapes)
    near, wide = ([x.to(dtype).requires_grad_() for x in (q, k, v)] for dtype in (torch.float16, torch.float64))
    mask: dict[str, Any] = {"mask_mod": masks.causal()} if causal else {}
    o = attention_varlen(near[0], near[1], near[2], offsets(queries), offsets(keys), **mask, **options, device="cuda-emulated")
    wanted = reference(wide[0], wide[1], wide[2], queries, keys, causal)
    pairs = [(o, wanted), *zip(torch.autograd.grad(o, near, do), torch.autograd.grad(wanted, wide, do.double()), strict=True)]
    for mine, right in pairs:
        assert float((mine.double() - right).detach().norm()) <= 2e-3 * float(right.detach().norm())


@pytest.mark.parametrize("causal", [False, True])
def test_sequences_as_they_are_launched(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told numbers, tiles that are drawn, and, in blocks of 64 queries, sums over keys by a warpgroup of their own."""
    chosen = {"arch": "sm_90a", "pieces": 0, "emitter": "warp", "order": "dynamic", "stages": 2, "tell": 1}
    chosen |= {"block_q": 128, "block_kv": 64, "key_sums": "warpgroup"}
    monkeypatch.setattr(emulation, "choices_of", lambda _: chosen)
    test_sequences(64, (5, 130, 0, 300), (5, 130, 7, 300), causal, {})


@pytest.mark.parametrize("function", ["", "bwd"])
@pytest.mark.parametrize("tell", [0, 1])
def test_copy_engines_take_views_as_such(function: str, tell: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor of a tensor where one of its view belongs reads and writes other rows, which no evaluator sees."""
    plan = codegen.plan

    def planned(kernel: Any) -> Any:
        fields = plan(kernel)
        kept = {name: fields[name] for name in ("arch", "stages", "order") if name in fields}
        return {**kept, "emitter": "warp", "tell": tell} if fields["emitter"] in ("hopper", "warp") else fields

    monkeypatch.setattr(codegen, "plan", planned)
    q, k, v = (torch.randn(9, heads, 128).half() for heads in (2, 1, 1))
    text = text_of(lambda: attention_varlen(q, k, v, offsets([5, 4]), mask_mod=masks.causal()))
    prepared = prepare_derivative(function, ("q", "k", "v"), pipeline.outline("sm_90a"))
    _, units = driver._lower(text, *prepared, {"arch": "sm_90a"})
    (unit,) = (unit for unit in units.values() if unit.schedule["emitter"] == "warp")
    assert not complaints(unit.code)
    described = {each.argument: each.kind for each in unit.code.parameters if each.kind in ("ragged", "descriptor", "packed")}
    assert described == dict.fromkeys(unit.kernel.ragged, "ragged")
