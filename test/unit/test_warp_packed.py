"""Packed sequences in kernels of the `warp` dialect for Hopper: forward and gradients in the evaluator against float64; how views are
described to copy engines.
"""

from typing import Any

import pytest
import torch

from attn_mlir import attention_varlen, masks, rows
from attn_mlir.backends.nvidia import codegen, driver, pipeline
from attn_mlir.backends.nvidia.emulation import driver as emulation
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.errors import UnsupportedError
from generated_code import complaints
from program_texts import text_of
from varlen_cases import offsets

Lengths = tuple[int, ...]
LAUNCHED = {"arch": "sm_90a", "pieces": 0, "emitter": "warp", "order": "dynamic", "stages": 2, "tell": 1}
LAUNCHED |= {"block_q": 128, "block_kv": 64, "key_sums": "warpgroup"}
MAPPED = ("ragged", "descriptor", "packed", "window")
"""Parameters that describe tensors to copy engines."""
NUMBERS = torch.linspace(-1, 1, 9)


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
    monkeypatch.setattr(emulation, "choices_of", lambda _: LAUNCHED)
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
    described = {each.argument: each.kind for each in unit.code.parameters if each.kind in MAPPED}
    assert described == dict.fromkeys(unit.kernel.ragged, "ragged")


@pytest.mark.parametrize(("function", "dim", "options"), [
    ("", 64, {"return_lse": True, "mask_mod": masks.causal()}),
    ("", 128, {"return_states": True}),
    ("", 192, {}),
    ("", 64, {"row": rows.sigmoid}),
    ("", 64, {"score_mod": lambda s, b, h, i, j: s + NUMBERS[j]}),
    ("bwd", 64, {"mask_mod": masks.sliding_window(4)}),
    ("bwd", 64, {"row": rows.sigmoid, "mask_mod": masks.causal()}),
    ("bwd", 64, {"row": rows.relu_normalized, "mask_mod": masks.causal()}),
], ids=["lse", "states", "wide", "sigmoid", "numbers of keys", "window, backward", "sigmoid, backward", "relu, backward"])  # fmt: skip
def test_launched_kernels_describe_views_as_such(function: str, dim: int, options: dict[str, Any]) -> None:
    """Kernels as they are chosen: whatever a copy engine reads or writes is described as a view exactly where it is one."""
    q, k, v = (torch.randn(9, heads, dim).half() for heads in (4, 2, 2))
    text = text_of(lambda: attention_varlen(q, k, v, offsets([5, 4]), **options))
    prepared = prepare_derivative(function, ("q", "k", "v"), pipeline.outline("sm_90a"))
    _, units = driver._lower(text, *prepared, {"arch": "sm_90a"})
    (unit,) = (unit for unit in units.values() if unit.schedule["emitter"] == "warp")
    described = {each.argument: each.kind == "ragged" for each in unit.code.parameters if each.kind in MAPPED}
    assert described
    assert described == {number: number in unit.kernel.ragged for number in described}


@pytest.mark.parametrize("options", [
    {"mask_mod": masks.sliding_window(20)}, {"row": rows.sigmoid}, {"mask_mod": masks.causal("bottom_right")},
], ids=["window", "sigmoid", "bottom right"])  # fmt: skip
def test_rows_that_belong_to_no_sequence(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the schedule that is launched, next to sequences without queries, without keys, and with rows behind the last one."""
    monkeypatch.setattr(emulation, "choices_of", lambda _: LAUNCHED)
    draw = torch.Generator().manual_seed(1)
    given = [torch.randn(shape, generator=draw) for shape in ((152, 4, 64), (224, 2, 64), (224, 2, 64), (152, 4, 64))]
    places = offsets((5, 0, 103, 1, 40)), offsets((60, 3, 0, 150, 9))
    found = []
    for device, dtype in (("cuda-emulated", torch.float16), ("cpu", torch.float64)):
        q, k, v, do = (x.half().to(dtype) for x in given)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        o = attention_varlen(q, k, v, *places, **options, device=device)
        found.append([o, *torch.autograd.grad(o, leaves, do)])
    for mine, right in zip(*found, strict=True):
        assert float((mine.double() - right).detach().norm()) <= 2e-3 * float(right.detach().norm())


@pytest.mark.parametrize("device", ["cuda-emulated", "cuda-emulated-sm80", "hip-emulated"])
def test_no_sequences(device: str) -> None:
    q, k = torch.randn(5, 2, 64).half(), torch.randn(3, 1, 64).half()
    with pytest.raises(UnsupportedError, match="need one at least"):
        attention_varlen(q, k, k, offsets(()), device=device)
    assert not attention_varlen(q, k, k, torch.tensor([0, 0], dtype=torch.int32), device=device).any()
