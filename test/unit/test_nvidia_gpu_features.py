"""What users write besides row and mask, on an NVIDIA GPU: numbers against the dense formula; everywhere: who makes the kernels."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mlir
from attn_mlir import attention, linear_attention, masks, rows
from attn_mlir.integrations.transformers import register
from dense_rows import dense, fit, with_torch
from engine_helpers import Sink, engine
from generated_code import complaints, kernels, traced
from gpu_cases import GPU, causal, failures
from test_transformers import needs_transformers, tiny

SQ, SKV, D = 150, 210, 64
WIDTH = 13
_GENERATOR = torch.Generator().manual_seed(3)
GATE, SHIFT, PATTERN = torch.rand(4, generator=_GENERATOR) + 0.5, torch.rand(SKV, generator=_GENERATOR), torch.arange(12).view(3, 4) % 3 > 0


@dataclass(frozen=True)
class Feature:
    """`make(move)` gives the functions of an attention, of tensors that `move` puts on its device; `formula` those of the dense one."""

    make: Callable[[Callable[[Tensor], Tensor]], Mapping[str, Any]]
    formula: Mapping[str, Any] = field(default_factory=dict)
    slow: bool = False
    """Whether a kernel of it goes through TileLang."""
    factor: float = 3.0


def neighbourhood(b: Any, h: Any, q: Any, k: Any) -> Any:
    columns = abs((q % WIDTH).clamp(3, WIDTH - 4) - k % WIDTH) <= 3
    return columns & (abs((q // WIDTH).clamp(1, 9) - k // WIDTH) <= 1)


def about_the_mean(s: Any) -> Any:
    """Tanh needs the mean of the whole row: the keys are passed over twice."""
    return torch.tanh(s - s.mean()) / 8


FEATURES = {
    "query mod": Feature(lambda move: _softmax(query_mod=_scaled(move(GATE)), mask_mod=causal)),
    "key mod": Feature(lambda move: _softmax(key_mod=_shifted(move(SHIFT)), mask_mod=causal)),
    "value mod": Feature(lambda move: _softmax(value_mod=lambda x: torch.tanh(x), mask_mod=causal)),
    "all mods": Feature(
        lambda move: _softmax(query_mod=_scaled(move(GATE)), key_mod=_shifted(move(SHIFT)), value_mod=lambda x: torch.tanh(x))
    ),
    "bottom-right": Feature(
        lambda move: _softmax(mask_mod=masks.causal("bottom_right")), {"mask_mod": lambda b, h, q, k: q + SKV - SQ >= k}
    ),
    "window, bottom-right": Feature(
        lambda move: _softmax(mask_mod=masks.sliding_window(40, 0, "bottom_right")),
        {"mask_mod": lambda b, h, q, k: (q + SKV - SQ - k <= 40) & (k <= q + SKV - SQ)},
    ),
    "two-sided window": Feature(
        lambda move: _softmax(mask_mod=masks.sliding_window(30, 20)), {"mask_mod": lambda b, h, q, k: (q - k <= 30) & (k - q <= 20)}
    ),
    "pattern of blocks": Feature(lambda move: _softmax(mask_mod=_blocks(move(PATTERN)))),
    "neighbourhood": Feature(lambda move: _softmax(mask_mod=neighbourhood)),
    "two passes": Feature(lambda move: {"row": about_the_mean}),
}  # fmt: skip


def _softmax(**functions: Any) -> dict[str, Any]:
    return {"row": rows.softmax, **functions}


def _scaled(gate: Tensor) -> Callable[..., Any]:
    return lambda x, b, h, i, d: x * gate[h]


def _shifted(shift: Tensor) -> Callable[..., Any]:
    return lambda x, b, h, j, d: x + 0.1 * shift[j]


def _rounding(mod: Callable[..., Any]) -> Callable[..., Any]:
    """A mod whose result has the type of what it changes."""
    return lambda x, *place: fit(mod, x, *place).to(x.dtype)


def _blocks(pattern: Tensor) -> Callable[..., Any]:
    return lambda b, h, q, k: pattern[q // 64, k // 64]


def heads(device: str, sq: int = SQ, skv: int = SKV) -> list[Tensor]:
    """q, k, v in f16, that need gradients."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, sq, D), (2, 2, skv, D), (2, 2, skv, D))
    return [torch.randn(shape, generator=generator).half().to(device).requires_grad_() for shape in shapes]


def gradients(results: Any, leaves: list[Tensor]) -> list[Tensor]:
    """The results, and the gradients of the leaves for fixed normal gradients of all results."""
    results = results if isinstance(results, (tuple, list)) else (results,)
    upstream = [torch.randn(x.shape, generator=torch.Generator().manual_seed(i)).to(x) for i, x in enumerate(results)]
    return [*[x.detach() for x in results], *torch.autograd.grad(results, leaves, upstream)]


def compare(ours: Callable[..., Any], formula: Callable[..., Any], device: str, factor: float = 3.0, **sizes: int) -> None:
    """Results and gradients against a formula in float64, by the rule of `gpu_cases.failures`."""
    leaves = heads(device, **sizes)
    got = [x.cpu() for x in gradients(ours(*leaves), leaves)]
    eager, exact = ([x.detach().cpu().to(dtype).requires_grad_() for x in leaves] for dtype in (torch.float16, torch.float64))
    found = failures(got, gradients(formula(*eager), eager), gradients(formula(*exact), exact), factor, [str(i) for i in range(len(got))])
    assert not found, found


def check(name: str, device: str) -> None:
    """One of FEATURES."""
    feature = FEATURES[name]
    functions = feature.make(lambda tensor: tensor.to(device))
    formula = {**feature.make(lambda tensor: tensor), **feature.formula}
    formula["row"] = with_torch(formula["row"])
    formula.update({name: _rounding(formula[name]) for name in ("query_mod", "key_mod", "value_mod") if name in formula})
    compare(lambda q, k, v: attention(q, k, v, **functions), lambda *qkv: dense(formula, *qkv)[0], device, feature.factor)


@pytest.mark.parametrize("name", FEATURES)
def test_who_makes_the_kernels(name: str) -> None:
    """Without a GPU: Hopper's emitter makes all that multiplies, and clang's front end takes it."""
    functions = dict(FEATURES[name].make(lambda tensor: tensor))
    made = kernels(traced(functions.pop("mask_mod", None), **functions), vendors=("nvidia",))
    assert {code.language for code in made} == ({"cuda", "tilelang"} if FEATURES[name].slow else {"cuda"})
    assert not any(complaints(code) for code in made)


class TestFeatures:
    pytestmark = GPU

    @pytest.fixture(autouse=True)
    def _strict(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All of this is fast: what is not is an error."""
        monkeypatch.setenv("ATTN_MLIR_STRICT", "1")

    @pytest.mark.parametrize("name", [name for name, feature in FEATURES.items() if not feature.slow])
    def test_against_the_dense_formula(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if name in ("pattern of blocks", "neighbourhood"):  # registers do not suffice for their backward passes
            monkeypatch.setenv("ATTN_MLIR_STRICT", "0")
        check(name, "cuda")

    @pytest.mark.parametrize("row", [rows.softmax, rows.softmax1])
    def test_gradients_of_lse(self, row: Any) -> None:
        check_lse(row, "cuda")

    def test_custom_inputs(self) -> None:
        check_custom("cuda")

    def test_retention_with_decay(self) -> None:
        check_retention("cuda")

    def test_tuner(self, tmp_path: Path) -> None:
        """It measures once, keeps what it found, and the tuned kernels compute the same."""
        file = tmp_path / "tuned.json"
        leaves = heads("cuda")
        want = gradients(attention(leaves[0], leaves[1], leaves[2], mask_mod=causal), leaves)
        for tune in (True, False):
            run = attn_mlir.Attention(mask_mod=causal, tune=tune, tune_file=str(file))
            for x, y in zip(gradients(run(*leaves), leaves), want, strict=True):
                torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)
        assert json.loads(file.read_text())

    @needs_transformers
    def test_transformers(self) -> None:
        check_transformers("cuda")


def check_lse(row: Any, device: str) -> None:
    """Gradients through o and lse together."""
    functions: dict[str, Any] = {"row": row, "mask_mod": causal}
    formula = {**functions, "row": with_torch(row)}

    def dense_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        o, states = dense(formula, q, k, v, lse=True)
        return o, states["lse"].to(torch.float64 if o.dtype == torch.float64 else torch.float32)

    compare(lambda q, k, v: attention(q, k, v, **functions, return_lse=True), dense_lse, device)


def check_custom(device: str) -> None:
    """An AttentionEngine whose rows read a custom input with a gradient."""
    q, k, v = (x.detach().transpose(1, 2).contiguous() for x in heads("cpu", 150, 150))
    k, v = (x.repeat_interleave(2, 2) for x in (k, v))
    sink = torch.tensor([0.5, -0.5, 0.1, 1.0])
    mod = engine((q, k, v), Sink.custom, Sink(), score_mod=lambda score, custom_io, b, h, q_idx, kv_idx: score * D**-0.5)
    leaves = [x.to(device).requires_grad_() for x in (q, k, v, sink)]
    got = [x.cpu() for x in gradients(mod(*leaves), leaves)]

    def formula(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
        s = torch.einsum("bihd,bjhd->bhij", q, k) * D**-0.5
        s = torch.cat([s, sink.to(s.dtype).view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1).softmax(-1)[..., :-1]
        return torch.einsum("bhij,bjhd->bihd", s, v)

    given = [[x.to(dtype).requires_grad_() for x in (q, k, v, sink)] for dtype in (torch.float16, torch.float64)]
    eager, exact = (gradients(formula(*leaves), leaves) for leaves in given)
    found = failures(got, eager, exact, 4.0, ["o", "dq", "dk", "dv", "dsink"])
    assert not found, found


def check_retention(device: str) -> None:
    """Retention as a recurrence, with a decay for each head."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 300, 64, generator=generator).bfloat16() * 0.3 for _ in range(3))
    decay = torch.log(1 - 2.0 ** -torch.arange(5.0, 9.0))
    leaves = [x.to(device).requires_grad_() for x in (q, k, v)]
    got = gradients(linear_attention(leaves[0], leaves[1], leaves[2], decay.to(device)), leaves)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    at = torch.arange(300)
    weights = torch.exp(decay.double()[:, None, None] * (at[:, None] - at)).tril()
    want = gradients((exact[0] @ exact[1].transpose(2, 3) * weights) @ exact[2], exact)
    for x, y in zip(got, want, strict=True):
        assert (x.cpu().double() - y).abs().max() <= 0.01 * y.abs().max()


def check_transformers(device: str) -> None:
    """A decoder with grouped heads and padding, in half precision."""
    model, ids, mask = tiny("Llama")
    model, given = model.half().to(device), {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
    with torch.inference_mode():
        expected = model(**given).logits.cpu().float()
        model.set_attn_implementation(register())
        got = model(**given).logits.cpu().float()
    present = mask.bool()
    assert (got - expected)[present].abs().max() <= 2e-2 * expected[present].abs().max()
