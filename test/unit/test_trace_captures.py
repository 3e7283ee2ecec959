"""Captured tensors and scalars: what becomes an argument, what is read, what is a constant."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, Traced, trace
from trace_helpers import HEADS, LENGTH, B, check_mask, check_score, eager_scores, eye, grid, identity, run, scores, traced_scores

WINDOW = 4
SLOPES = torch.linspace(0.5, 1.5, HEADS, dtype=torch.float64)


def traced(score_mod: Callable[..., Any] | None = None, **functions: Any) -> Traced:
    return trace(Definition(identity, score_mod, scale=1.0, **functions), Inputs("f32", 8, 8))


def names(program: Traced) -> list[tuple[str, str]]:
    return [(captured.name, captured.kind) for captured in program.captures]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_float_tensor_of_every_dtype(dtype: torch.dtype) -> None:
    slopes = SLOPES.to(dtype)
    check_score(lambda score, b, h, q_idx, kv_idx: score + slopes[h].double() * (kv_idx - q_idx))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_integer_tensor_of_every_dtype(dtype: torch.dtype) -> None:
    table = torch.arange(200, 200 - LENGTH, -1).to(dtype)
    check_score(lambda score, b, h, q_idx, kv_idx: score + table[kv_idx].long() * 2)


def test_bool_tensor() -> None:
    keep = torch.arange(LENGTH) % 3 != 0
    check_mask(lambda b, h, q_idx, kv_idx: keep[kv_idx] | (q_idx == kv_idx))
    check_score(lambda score, b, h, q_idx, kv_idx: score * keep[kv_idx] + keep[q_idx].int())


def test_every_rank() -> None:
    generator = torch.Generator().manual_seed(1)
    sizes = (B, HEADS, LENGTH, LENGTH)
    for rank in range(1, 5):
        bias = torch.randn(sizes[4 - rank :], generator=generator, dtype=torch.float64)
        check_score(lambda score, *position, bias=bias, rank=rank: score + bias[position[4 - rank :]])
    scalar = torch.tensor(2.5, dtype=torch.float64)
    check_score(lambda score, b, h, q_idx, kv_idx: score * scalar + scalar + (scalar - score) / scalar)


def test_index_by_index() -> None:
    bias = torch.randn(B, HEADS, LENGTH, dtype=torch.float64)
    position = [index.expand(B, HEADS, LENGTH, LENGTH) for index in grid()]
    expected = scores() + bias[position[0], position[1], position[3]]
    torch.testing.assert_close(traced_scores(lambda score, b, h, q_idx, kv_idx: score + bias[b][h, kv_idx]), expected)


def test_negative_and_constant_indices_wrap() -> None:
    table = torch.randn(2 * LENGTH, dtype=torch.float64)
    check_score(lambda score, b, h, q_idx, kv_idx: score + table[q_idx - kv_idx] + table[-1] + table[0])
    text = traced(lambda score, b, h, q_idx, kv_idx: score + table[q_idx - kv_idx]).text
    assert "arith.select" in text
    text = traced(lambda score, b, h, q_idx, kv_idx: score + table[(q_idx + kv_idx) // 2 % 7 * 2 + abs(q_idx - kv_idx)]).text
    assert "arith.select" not in text


def test_nested_gathers() -> None:
    document = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2])
    offsets = torch.tensor([0, 2, 5])
    check_mask(
        lambda b, h, q_idx, kv_idx: (
            (document[q_idx] == document[kv_idx]) & (q_idx - offsets[document[q_idx]] >= kv_idx - offsets[document[kv_idx]])
        )
    )


def test_numpy_arrays() -> None:
    slopes = np.linspace(0.1, 1.0, HEADS)
    program = traced(lambda score, b, h, q_idx, kv_idx: score * slopes[h])
    assert names(program) == [("slopes", "tensor")]
    result = traced_scores(lambda score, b, h, q_idx, kv_idx: score * slopes[h])
    torch.testing.assert_close(result, scores() * torch.from_numpy(slopes)[None, :, None, None])


class Bias(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.randn(HEADS, dtype=torch.float64))
        self.ids = torch.nn.Buffer(torch.arange(LENGTH) // 3)
        self.gain = 2.0

    def score_mod(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return self.helper(score) + self.bias[h] * (self.ids[q_idx] - self.ids[kv_idx])

    def helper(self, score: Any) -> Any:
        return score * self.gain


def test_attributes() -> None:
    module = Bias()
    check_score(module.score_mod)
    check_score(lambda *arguments: module.score_mod(*arguments))
    assert names(traced(module.score_mod)) == [("bias", "tensor"), ("ids", "tensor")]


def test_globals_and_shared_helpers() -> None:
    check_score(_with_globals)
    assert names(traced(_with_globals)) == [("SLOPES", "tensor"), ("WINDOW", "int")]


def _distance(q_idx: Any, kv_idx: Any) -> Any:
    return torch.clamp(abs(q_idx - kv_idx), max=2) * WINDOW


def _with_globals(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + SLOPES[h] * _distance(q_idx, kv_idx)


def test_scalars_are_runtime_arguments() -> None:
    gain, shift = 1.5, 3

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, power: float = 0.25) -> Any:
        return (score * gain + (q_idx - shift)) * power

    program = traced(score_mod)
    assert names(program) == [("gain", "float"), ("shift", "int"), ("power", "float")]
    assert program.specialised == ()
    check_score(score_mod)


def test_only_used_scalars_become_arguments() -> None:
    gain, unused = 1.5, 2.5

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        _ = score * unused
        return score * gain

    assert names(traced(score_mod)) == [("gain", "float")]


def test_one_tensor_is_one_argument() -> None:
    first = second = torch.randn(HEADS, dtype=torch.float64)
    program = traced(lambda score, b, h, q_idx, kv_idx: score * first[h] + second[h])
    assert len(program.captures) == 1


def test_equal_names_are_told_apart() -> None:
    def make(slopes: torch.Tensor) -> Callable[..., Any]:
        return lambda score, b, h, q_idx, kv_idx: score + slopes[h]

    one, two = make(torch.ones(HEADS)), make(torch.zeros(HEADS))
    program = traced(lambda score, *position: one(score, *position) + two(score, *position))
    assert names(program) == [("slopes", "tensor"), ("slopes_1", "tensor")]


FORCED: dict[str, Callable[[Any, Any], Any]] = {
    "if": lambda score, n: score if n > 2 else -score,
    "range": lambda score, n: sum((score * i for i in range(n)), score),
    "math": lambda score, n: score * math.sqrt(n),
    "int": lambda score, n: score * int(n),
    "list index": lambda score, n: score * [1, 2, 3, 4][n],
    "dictionary key": lambda score, n: score * {3: 5.0}[n],
    "and": lambda score, n: score * (n and 2),
    "max": lambda score, n: score * max(n, 7),
    "round": lambda score, n: score * round(n / 2),
    "power": lambda score, n: score * 3**n,
    "text": lambda score, n: score * len(f"{n:05}"),
    "torch function": lambda score, n: score * torch.arange(n + 1)[2],
}


BRANCHES = {"if": True, "max": True}
"""Those of which only the outcome of a comparison is kept."""


@pytest.mark.parametrize("name", FORCED)
def test_a_scalar_forced_to_a_number_is_specialised(name: str) -> None:
    function, n = FORCED[name], 3
    score_mod = lambda score, b, h, q_idx, kv_idx: function(score, n)  # noqa: E731
    program = traced(score_mod)
    assert names(program) == []
    if name in BRANCHES:
        assert not program.specialised and [decision.outcome for decision in program.decisions] == [BRANCHES[name]]
    else:
        assert [value for _, value in program.specialised] == [3]
    check_score(score_mod)


def test_sizes_of_captured_tensors_are_runtime_values() -> None:
    table = torch.randn(LENGTH + 4, dtype=torch.float64)
    score_mod = lambda score, b, h, q_idx, kv_idx: score + table[torch.clamp(q_idx + kv_idx, max=table.shape[0] - 1)]  # noqa: E731
    program = traced(score_mod)
    assert "tensor.dim %table" in program.text
    assert program.specialised == ()
    check_score(score_mod)
    check_score(lambda score, b, h, q_idx, kv_idx: score * table.size(0) + table.shape[-1] + table.dim() + table.ndim)


def test_a_size_forced_to_a_number_is_specialised() -> None:
    table = torch.randn(3, dtype=torch.float64)
    score_mod = lambda score, b, h, q_idx, kv_idx: sum((table[i] for i in range(len(table))), score)  # noqa: E731
    program = traced(score_mod)
    assert [value for _, value in program.specialised] == [3]
    check_score(score_mod)


def test_infinite_scalars_are_constants() -> None:
    lowest = -math.inf
    program = traced(lambda score, b, h, q_idx, kv_idx: torch.where(q_idx >= kv_idx, score, lowest))
    assert names(program) == []


def test_partial_functions_and_callable_objects() -> None:
    class Scaled:
        def __init__(self, gain: float) -> None:
            self.gain = gain

        def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score * self.gain

    def with_bias(bias: Any, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + bias[h]

    check_score(Scaled(3.0))
    check_score(functools.partial(with_bias, SLOPES))


def test_division_by_a_captured_zero_is_noted() -> None:
    block = 4
    program = traced(mask_mod=lambda b, h, q_idx, kv_idx: q_idx // block == kv_idx // block)
    assert len(program.nonzero) == 1
    table = torch.tensor([0, 1, 2])
    check = lambda b, h, q_idx, kv_idx: (q_idx // table[h] >= 0) | (q_idx > kv_idx)  # noqa: E731
    assert "arith.select" in traced(mask_mod=check).text


def test_shared_between_functions() -> None:
    document = torch.arange(LENGTH) // 4
    same = lambda b, h, q_idx, kv_idx: document[q_idx] == document[kv_idx]  # noqa: E731
    score_mod = lambda score, b, h, q_idx, kv_idx: score * (document[q_idx] + 1)  # noqa: E731
    program, results = run(Definition(identity, score_mod, same, scale=1.0), scores(), eye(), eye())
    assert names(program) == [("document", "tensor")]
    expected = eager_scores(score_mod) * same(*grid())
    torch.testing.assert_close(results[0], expected)


def test_what_torch_computes_of_captured_tensors_is_captured() -> None:
    table = torch.randn(HEADS, dtype=torch.float64)
    score_mod = lambda score, b, h, q_idx, kv_idx: score + (table * 2)[h]  # noqa: E731
    program = traced(score_mod)
    assert program.reusable and names(program) == [("table_mul", "tensor")]
    check_score(score_mod)
    fresh = lambda score, b, h, q_idx, kv_idx: score + torch.arange(5)[h]  # noqa: E731
    assert traced(fresh).reusable and traced(fresh).is_plain
    item = traced(lambda score, b, h, q_idx, kv_idx: score * table[0].item())
    assert item.reusable and names(item) == [("table_item", "float")]
    hidden = traced(lambda score, b, h, q_idx, kv_idx: score * getattr(math, "slopes", table)[h])
    assert not hidden.reusable


def test_names_are_words_of_options() -> None:
    """Derivatives name captured tensors in options of passes, and keys of dictionaries may be any text."""
    tables = {"by key": torch.ones(LENGTH), "by+key": torch.ones(LENGTH), "a={b}, c": torch.ones(LENGTH)}

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + tables["by key"][kv_idx] * tables["by+key"][kv_idx] + tables["a={b}, c"][kv_idx]

    assert [name for name, _ in names(traced(score_mod))] == ["by_key", "by_key_1", "a_b_c"]
