"""Gradients of compiled attention on the CPU against autograd of the dense formula in float64: rows, lengths, numbers, dtypes, strides."""

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from attn_mlir import attention, rows
from dense_rows import dense, with_torch
from gradient_cases import CAPTURES, MASKS, MODS, ROWS, row_case, softmax
from gradient_checks import Case, compiled_errors, eager_errors, gradients_of, normal_like, random, relative_error

EVERY = os.environ.get("ATTN_MLIR_SLOW_TESTS", "") not in ("", "0")
TOLERANCE = 2e-5
_MASKS, _MODS = list(MASKS), list(MODS)
_CHOSEN = (
    "softmax", "softmax with sink", "relu normalised", "retention, parallel", "layer norm", "std temperature", "entropy",
    "temperature per head, late", "two maxima", "largest weight", "min-max normalised", "rows.softmax1",
)  # fmt: skip
_CAPTURED = (
    "bias [B, 1, 1, Skv]",
    "a number",
    "relative position",
    "two documents",
    "several reads",
    "read in score and row",
    "all mods, one tensor",
)


def _combinations() -> list[tuple[str, str, str]]:
    if EVERY:
        return list(itertools.product(ROWS, _MASKS, _MODS))
    return [(row, _MASKS[i % 4], _MODS[(i + i // 4) % 4]) for i, row in enumerate(_CHOSEN)]


def check(case: Case, tolerance: float = TOLERANCE) -> None:
    """In float32; a gradient whose terms nearly cancel, as that of one number may, has at most 3 times the formula's own error."""
    found = compiled_errors(case, torch.float32)
    wrong = {name: error for name, error in found.items() if not error <= tolerance}
    if wrong and all(error < 1e-2 for error in wrong.values()):
        eager = eager_errors(case, torch.float32)
        wrong = {name: error for name, error in wrong.items() if name not in eager or error > 3 * eager[name]}
    assert not wrong, f"relative errors above {tolerance}: {wrong}"


@pytest.mark.parametrize(("row", "mask", "mod"), _combinations())
def test_row(row: str, mask: str, mod: str) -> None:
    check(row_case(row, mask, mod))


@pytest.mark.parametrize("name", list(CAPTURES) if EVERY else _CAPTURED)
def test_captured_tensor(name: str) -> None:
    check(CAPTURES[name])


def alibi(t: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        "row": softmax,
        "score_mod": lambda s, b, h, q, k: s + t["slopes"][h] * (k - q),
        "mask_mod": lambda b, h, q, k: q >= k,
    }


def relu_window(t: Mapping[str, Tensor]) -> dict[str, Any]:
    def row(s: Any) -> Any:
        r = torch.relu(s)
        return r / (r.sum() + 0.1)

    return {"row": row, "score_mod": lambda s, b, h, q, k: s + t["bias"][h, q], "mask_mod": lambda b, h, q, k: abs(q - k) <= 5}


def sigmoid_documents(t: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        "row": lambda s: torch.sigmoid(s),
        "score_mod": lambda s, b, h, q, k: s + t["bias"][h, k],
        "mask_mod": lambda b, h, q, k: q // 7 == k // 7,
    }


def softcap(t: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        "row": softmax,
        "score_mod": lambda s, b, h, q, k: t["cap"] * torch.tanh(s / t["cap"]),
        "mask_mod": lambda b, h, q, k: q + 3 >= k,
    }


Make = Callable[[Mapping[str, Tensor]], dict[str, Any]]
PROGRAMS: dict[str, Make] = {"alibi": alibi, "relu in a window": relu_window, "sigmoid in documents": sigmoid_documents, "softcap": softcap}


def leaves(sq: int, skv: int, heads: tuple[int, int] = (4, 2), dims: tuple[int, int] = (16, 24), b: int = 2) -> dict[str, Tensor]:
    """Inputs and what the programs capture, in float64."""
    (hq, hkv), (d, dv) = heads, dims
    made = {"q": random(b, hq, sq, d, seed=1), "k": random(b, hkv, skv, d, seed=2), "v": random(b, hkv, skv, dv, seed=3)}
    captured = {"slopes": 0.1 * random(hq, seed=4), "bias": random(hq, max(sq, skv), seed=5), "cap": torch.tensor(2.5)}
    return {name: x.double() for name, x in (made | captured).items()}


def results(attend: Callable[..., Any], make: Make, inputs: Mapping[str, Tensor], dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
    """o, and the gradients of what counts, for one fixed gradient of o."""
    x = {name: value.to(dtype).detach().requires_grad_() for name, value in inputs.items()}
    o = attend(make(x), x["q"], x["k"], x["v"])
    (upstream,) = normal_like([o], 7)
    return o.detach(), dict(zip(x, gradients_of([o], list(x.values()), [upstream.to(dtype)]), strict=True))


def ours(functions: Mapping[str, Any], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, **functions)


def formula(functions: Mapping[str, Any], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return dense(functions, q, k, v)[0]


def compare(make: Make, inputs: Mapping[str, Tensor], tolerance: float = TOLERANCE) -> None:
    """In float32, against the formula in float64 for the same numbers; gradients that are 0 for one key, in units of 1."""
    least = 1.0 if inputs["k"].shape[2] == 1 else 1e-3
    rounded = {name: x.float().double() for name, x in inputs.items()}
    (o, got), (wanted_o, wanted) = results(ours, make, rounded, torch.float32), results(formula, make, rounded, torch.float64)
    found = {"o": relative_error(o, wanted_o)} | {f"d{name}": relative_error(got[name], wanted[name], least) for name in wanted}
    # A sum over all pairs of a head is added up in float32.
    bounds = {name: 5 * tolerance if name == "dslopes" and inputs["q"].shape[2] >= 1000 else tolerance for name in found}
    wrong = {name: error for name, error in found.items() if not error <= bounds[name]}
    assert not wrong, wrong


@pytest.mark.parametrize("length", [1, 17, 127, pytest.param(1000, marks=pytest.mark.skipif(not EVERY, reason="slow"))])
@pytest.mark.parametrize("name", PROGRAMS)
def test_length(name: str, length: int) -> None:
    compare(PROGRAMS[name], leaves(length, length))


@pytest.mark.parametrize(("sq", "skv"), [(1, 130), (33, 1), (40, 257)])
def test_lengths_that_differ(sq: int, skv: int) -> None:
    compare(softcap, leaves(sq, skv))


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (8, 1)])
def test_grouped_heads(heads: tuple[int, int]) -> None:
    compare(alibi, leaves(37, 37, heads))


def test_head_dimensions() -> None:
    compare(alibi, leaves(20, 20, dims=(5, 3)))
    compare(alibi, leaves(70, 70, dims=(64, 128), b=1))


def empty_rows(t: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        "row": softmax,
        "score_mod": lambda s, b, h, q, k: s * t["bias"][h, q],
        "mask_mod": lambda b, h, q, k: (k < q - 4) & (q % 5 != 2),
    }


def test_rows_without_keys() -> None:
    """Whole blocks of them, and single ones; their gradients are 0."""
    inputs = leaves(70, 70)
    compare(empty_rows, inputs)
    _, got = results(ours, empty_rows, inputs, torch.float32)
    empty = [i for i in range(70) if i <= 4 or i % 5 == 2]
    assert not got["q"][:, :, empty].any() and not got["bias"][:, empty].any()


def nothing_present(t: Mapping[str, Tensor]) -> dict[str, Any]:
    return {"row": softmax, "score_mod": lambda s, b, h, q, k: s + t["bias"][h, q], "mask_mod": lambda b, h, q, k: k < 0}


def test_no_row_has_keys() -> None:
    o, got = results(ours, nothing_present, leaves(19, 19), torch.float32)
    assert not o.any() and all(not gradient.any() for gradient in got.values())


@pytest.mark.parametrize("factor", [30.0, 3000.0])
def test_large_scores(factor: float) -> None:
    """Scores up to 1e4: as good as the formula in float32, whose scores carry the same rounding; nothing is NaN."""
    inputs = leaves(45, 45)
    inputs["q"] = inputs["q"] * factor
    rounded = {name: x.float().double() for name, x in inputs.items()}
    (o, got), (eager_o, eager) = results(ours, alibi, rounded, torch.float32), results(formula, alibi, rounded, torch.float32)
    wanted_o, wanted = results(formula, alibi, rounded, torch.float64)
    assert relative_error(o, wanted_o) <= 2 * relative_error(eager_o, wanted_o) + 1e-6
    for name in wanted:
        assert relative_error(got[name], wanted[name]) <= 3 * relative_error(eager[name], wanted[name]) + 1e-5, name


def test_one_key_dominates() -> None:
    """All of the weight is on one key, so that gradients of scores nearly vanish."""
    inputs = leaves(33, 33)
    inputs["k"][:, :, 7] = 40.0 * inputs["q"].mean(dim=(1, 2))[:, None]
    inputs["q"] = inputs["q"] + 3.0 * inputs["k"][:, :1, 7:8] / 40.0
    compare(softcap, inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_low_precision(name: str, dtype: torch.dtype) -> None:
    """At most twice the error of the formula in PyTorch at this precision, 3 times with a softcap or for captured tensors."""
    make, inputs = PROGRAMS[name], {n: x.to(dtype).double() for n, x in leaves(48, 48, b=1).items()}
    (o, got), (eager_o, eager) = results(ours, make, inputs, dtype), results(formula, make, inputs, dtype)
    wanted_o, wanted = results(formula, make, inputs, torch.float64)
    for told, x, y, want in [("o", o, eager_o, wanted_o), *[(n, got[n], eager[n], wanted[n]) for n in wanted]]:
        factor = 3 if name == "softcap" or told not in ("o", "q", "k", "v") else 2
        rounding = torch.finfo(dtype).eps / 2
        assert relative_error(x, want) <= factor * relative_error(y, want) + rounding, (
            told,
            relative_error(x, want),
            relative_error(y, want),
        )


def _strided(x: Tensor, how: str) -> Tensor:
    """The same numbers in another memory order."""
    if how == "transposed":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "last dimension strided":
        return x.repeat_interleave(2, -1)[..., ::2]
    wide = torch.full((*x.shape[:2], x.shape[2] + 3, x.shape[3] + 5), torch.nan, dtype=x.dtype)
    wide[:, :, 2:-1, 3:-2] = x
    return wide[:, :, 2:-1, 3:-2]


@pytest.mark.parametrize("how", ["transposed", "last dimension strided", "part of a larger tensor"])
def test_strides(how: str) -> None:
    """Inputs, captured tensors and the gradient of o in any memory order give the same gradients."""
    inputs = {name: x.float() for name, x in leaves(21, 21).items()}
    x = {name: (_strided(t, how) if t.dim() == 4 else t).requires_grad_() for name, t in inputs.items()}
    plain = {name: t.clone().requires_grad_() for name, t in inputs.items()}
    o, same = ours(alibi(x), x["q"], x["k"], x["v"]), ours(alibi(plain), plain["q"], plain["k"], plain["v"])
    (upstream,) = normal_like([same], 7)
    got = gradients_of([o], list(x.values()), [_strided(upstream.float(), how)])
    wanted = gradients_of([same], list(plain.values()), [upstream.float()])
    for name, g, w in zip(x, got, wanted, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-6, atol=1e-6, msg=name)


def test_expanded_inputs_and_gradients() -> None:
    """Keys shared by a batch through expand, a bias through expand, and the gradient of a sum, which is one number."""

    def run(attend: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        q, k, v = (
            random(*shape, seed=i).to(dtype).requires_grad_() for i, shape in enumerate([(3, 4, 15, 8), (1, 4, 15, 8), (1, 1, 15, 8)])
        )
        bias = random(15, 1, seed=9).to(dtype).requires_grad_()
        wide = bias.expand(15, 15)
        functions = {"row": softmax, "score_mod": lambda s, b, h, i, j: s + wide[i, j] * j}
        o = attend(functions, q, k.expand(3, 4, 15, 8), v.expand(3, 4, 15, 8))
        return list(torch.autograd.grad(o.sum() + 2.0 * (o[..., 0] ** 2).sum(), [q, k, v, bias]))

    for got, wanted in zip(run(ours, torch.float32), run(formula, torch.float64), strict=True):
        assert relative_error(got, wanted) <= TOLERANCE


def test_row_states_in_the_loss() -> None:
    """lse and a row state, each with a gradient of its own, together with o."""

    def row(s: Any) -> Any:
        m = s.max()
        e = torch.exp(s - m)
        l = e.sum()
        p = e / l
        return p, {"lse": m + torch.log(l), "top": p.max(), "energy": (p * s).sum()}

    check(Case(lambda t: {"row": row, "mask_mod": MASKS["causal"]}, lse=True))


def _all_gradients(make: Make, threads: int) -> list[Tensor]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        o, got = results(ours, make, leaves(150, 150), torch.float32)
    finally:
        torch.set_num_threads(before)
    return [o, *got.values()]


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_bits_for_every_number_of_threads(name: str) -> None:
    first = _all_gradients(PROGRAMS[name], 1)
    for threads in (2, 3, 2):
        assert all(torch.equal(a, b) for a, b in zip(first, _all_gradients(PROGRAMS[name], threads), strict=True))


SCORES: dict[str, Callable[[Any], Any]] = {
    "softplus": lambda s: torch.nn.functional.softplus(s),
    "log1p": lambda s: torch.log1p(s * s),
    "expm1": lambda s: torch.expm1(0.5 * s),
    "logaddexp": lambda s: torch.logaddexp(s, -s),
    "sigmoid": lambda s: torch.sigmoid(s),
    "straight-through": lambda s: s + (torch.round(s) - s).detach(),
}


@pytest.mark.parametrize("name", SCORES)
def test_functions_of_a_score(name: str) -> None:
    """In the score mod, which is computed wherever the score is."""
    check(
        Case(
            lambda t: {"row": softmax, "score_mod": lambda s, b, h, q, k: SCORES[name](s + t.x[h]), "mask_mod": MASKS["causal"]},
            {"x": random(4)},
        )
    )


def test_rows_of_the_library() -> None:
    """They are what they say: the same functions, run by PyTorch."""
    functions: Sequence[Any] = (rows.softmax, rows.relu_normalized, rows.retention)
    for function in functions:
        check(Case(lambda t, function=function: {"row": function, "dense_row": with_torch(function), "mask_mod": MASKS["window"]}))
