"""What cannot be traced is an error that names the function, shows the line and says what to write instead."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from attn_mlir.errors import ArgumentError, AttnError, TraceError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, Traced, trace
from attn_mlir.frontend.sizes import q_len

TABLE, LARGE = torch.zeros(4, 5), torch.zeros(4, 200)
NUMBERS = [1, 2, 3]
Function = Callable[..., Any]


def identity(s: Any) -> Any:
    return s


def traced(row: Function = identity, **functions: Any) -> Traced:
    return trace(Definition(row, **functions), Inputs("f32", 8, 8))


def message(**functions: Any) -> str:
    """The error of tracing, which must show the line of the mistake: those end in `# here`."""
    with pytest.raises(TraceError) as caught:
        traced(**functions)
    text = str(caught.value)
    assert "test_trace_errors.py:" in text, text
    assert "# here" in text, text
    return text


def branch(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    if q_idx > kv_idx:  # here
        return score
    return -score


def loop(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    while score > 0:  # here
        score = score - 1
    return score


def checked(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    assert score > 0  # here
    return score


def test_if_shows_line_and_caret() -> None:
    lines = message(score_mod=branch).splitlines()
    assert lines[0] == "score_mod `branch`: `if` needs one concrete value, but the condition differs from position to position"
    assert re.fullmatch(r"  --> .*test_trace_errors.py:\d+, in branch", lines[1])
    assert lines[2].endswith("if q_idx > kv_idx:  # here")
    start = lines[2].index("q_idx")
    assert lines[3].index("^") == start
    assert lines[3].count("^") == len("q_idx > kv_idx")
    assert lines[4] == "  help: compute both sides and write torch.where(q_idx > kv_idx, a, b)"


TRUTH: dict[str, tuple[Function, str]] = {
    "while": (loop, "a loop must not depend on a traced value"),
    "assert": (checked, "check the inputs before the call"),
    "conditional": (lambda s, b, h, i, j: s if i > 3 else 2 * s, "write torch.where(i > 3, s, 2 * s)"),  # here
    "max": (lambda s, b, h, i, j: max(s, 0.5), "write torch.maximum(s, 0.5)"),  # here
    "min": (lambda s, b, h, i, j: min(i, j) + s, "write torch.minimum(i, j)"),  # here
}


@pytest.mark.parametrize("name", TRUTH)
def test_truth_value_of_a_score(name: str) -> None:
    function, advice = TRUTH[name]
    assert advice in message(score_mod=function)


MASKS: dict[str, tuple[Function, str]] = {
    "and": (lambda b, h, i, j: i >= j and i - j < 4, "write (i >= j) & (i - j < 4)"),  # here
    "or": (lambda b, h, i, j: i < 3 or j < 4, "write (i < 3) | (j < 4)"),  # here
    "not": (lambda b, h, i, j: not i < j, "write ~(i < j)"),  # here
    "chained": (lambda b, h, i, j: 0 <= i - j < 4, "write (0 <= i - j) & (i - j < 4)"),  # here
    "any": (lambda b, h, i, j: any([i > 3, j > 2]), "a | b"),  # here
    "bool": (lambda b, h, i, j: bool(i > 3), "torch.where(cond, a, b)"),  # here
    "float result": (lambda b, h, i, j: i * 1.0, "compare: for example q_idx >= kv_idx"),  # here
    "integer result": (lambda b, h, i, j: i - j, "compare: for example q_idx >= kv_idx"),  # here
    "no result": (lambda b, h, i, j: None, "is a `return` missing?"),  # here
    "& of a float": (lambda b, h, i, j: (i > 2) & (j * 1.5), "with parentheses"),  # here
    "~ of a float": (lambda b, h, i, j: ~(j * 1.5), "compare first"),  # here
    "in": (lambda b, h, i, j: 3 in i, "compare with each"),  # here
    "is in a set": (lambda b, h, i, j: i in {1, 2}, "use a torch tensor as the table"),  # here
}


@pytest.mark.parametrize("name", MASKS)
def test_mask(name: str) -> None:
    function, advice = MASKS[name]
    assert advice in message(mask_mod=function)


SCORES: dict[str, tuple[Function, str]] = {
    "float": (lambda s, b, h, i, j: float(s), "x.float() for a cast"),  # here
    "math": (lambda s, b, h, i, j: math.exp(s), "use torch's functions"),  # here
    "int": (lambda s, b, h, i, j: s * int(i), "write x.int() for a cast"),  # here
    "list": (lambda s, b, h, i, j: s * NUMBERS[h], "index a torch tensor instead of a list"),  # here
    "range": (lambda s, b, h, i, j: sum(s for _ in range(i)), "unroll loops over fixed numbers"),  # here
    "iteration": (lambda s, b, h, i, j: [x for x in s], "one position at a time"),  # here
    "len": (lambda s, b, h, i, j: len(s), "attn_mlir.kv_len()"),  # here
    "index": (lambda s, b, h, i, j: s[0], "index captured tensors only"),  # here
    "item": (lambda s, b, h, i, j: s.item(), "already is a number"),  # here
    "numpy": (lambda s, b, h, i, j: np.asarray(s), "use torch's functions"),  # here
    "numpy reduction": (lambda s, b, h, i, j: np.multiply.outer(s, s), "use torch's functions"),  # here
    "unknown torch function": (lambda s, b, h, i, j: torch.special.airy_ai(s), "docs/vocabulary.md lists what there is"),  # here
    "unknown shape function": (lambda s, b, h, i, j: torch.cumsum(s, 0), "torch.cumsum of a traced value is not known"),  # here
    "unknown method": (lambda s, b, h, i, j: s.sigmoidd(), "did you mean sigmoid"),  # here
    "in-place method": (lambda s, b, h, i, j: s.add_(1), "write x = x.add(...)"),  # here
    "in-place function": (lambda s, b, h, i, j: torch.relu_(s), "use torch.relu"),  # here
    "out": (lambda s, b, h, i, j: torch.add(s, 1, out=TABLE), "use the result instead"),  # here
    "in-place on a capture": (lambda s, b, h, i, j: TABLE.add_(1)[h, i], "captured tensors are read only"),  # here
    "item assignment": (lambda s, b, h, i, j: TABLE.__setitem__((h, i), s), "captured tensors are read only"),  # here
    "constant item assignment": (lambda s, b, h, i, j: TABLE.__setitem__((0, 0), 1.0), "captured tensors are read only"),  # here
    "reduction": (lambda s, b, h, i, j: s - s.max(), "reductions belong into the row function"),  # here
    "condition": (lambda s, b, h, i, j: i > j, "a condition belongs into mask_mod"),  # here
    "string": (lambda s, b, h, i, j: "x", "return one traced value"),  # here
    "none": (lambda s, b, h, i, j: None, "is a `return` missing?"),  # here
    "tensor": (lambda s, b, h, i, j: TABLE, "read one number of it"),  # here
    "exception": (lambda s, b, h, i, j: {}["missing"], "raised KeyError: 'missing'"),  # here
    "too few indices": (lambda s, b, h, i, j: s + TABLE[h], "such as TABLE[q_idx, kv_idx]"),  # here
    "too few in result": (lambda s, b, h, i, j: TABLE[h], "an index for each dimension"),  # here
    "too many indices": (lambda s, b, h, i, j: s + TABLE[h, i, j], "leave the extra ones out"),  # here
    "float index": (lambda s, b, h, i, j: s + TABLE[h, s], "cast with .int()"),  # here
    "bool index": (lambda s, b, h, i, j: s + TABLE[h, i > j], "indices are integers"),  # here
    "slice": (lambda s, b, h, i, j: s + LARGE[h, :], "computes with all of `LARGE`"),  # here
    "ellipsis": (lambda s, b, h, i, j: s + TABLE[h, ...], "returned a tensor"),  # here
    "beside a tensor": (lambda s, b, h, i, j: s + LARGE, "computes with all of `LARGE`"),  # here
    "a tensor beside": (lambda s, b, h, i, j: LARGE.numpy() * s, "computes with all of `LARGE`"),  # here
    "compared with a tensor": (lambda s, b, h, i, j: torch.where(s > LARGE, s, 0.0), "computes with all of `LARGE`"),  # here
    "whole tensor": (lambda s, b, h, i, j: s + (LARGE * h)[0, 0], "computes with all of `LARGE`"),  # here
    "method of a part": (lambda s, b, h, i, j: LARGE[h].sum(), "computes with all of `LARGE`"),  # here
    "integer power": (lambda s, b, h, i, j: s + 3**h, "use a float base"),  # here
    "division by zero": (lambda s, b, h, i, j: s + i // 0, "make the divisor at least 1"),  # here
    "shift": (lambda s, b, h, i, j: s + (i << 64), "shift by 0 to 63 bits"),  # here
    "float shift": (lambda s, b, h, i, j: s + (i << 1.5), "shifts need integers"),  # here
    "large integer": (lambda s, b, h, i, j: s + 2**70 * i, "does not fit 64 bits"),  # here
    "cast": (lambda s, b, h, i, j: s.to(torch.int8), "use torch.float32"),  # here
    "dtype of a capture": (lambda s, b, h, i, j: s + torch.zeros(3, dtype=torch.complex64)[h], "dtype torch.complex64"),  # here
    "clamp": (lambda s, b, h, i, j: s.clamp(), "give min=, max= or both"),  # here
    "wrong options": (lambda s, b, h, i, j: torch.exp(s, 3, 4), "was called in a way that"),  # type: ignore[call-arg]  # here
    "compared with None": (lambda s, b, h, i, j: s == None, "`x is None`"),  # noqa: E711  # here
    "an object": (lambda s, b, h, i, j: s + object(), "uses a object as a number"),  # here
}


@pytest.mark.parametrize("name", SCORES)
def test_score(name: str) -> None:
    function, advice = SCORES[name]
    assert advice in message(score_mod=function)


def test_a_traced_negative_bool() -> None:
    assert "write ~x" in message(mask_mod=lambda b, h, i, j: -(i > j))  # here


def test_the_users_exception_is_the_cause() -> None:
    def broken(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        raise ValueError("boom")  # here

    with pytest.raises(TraceError, match="score_mod `broken`: raised ValueError: boom") as caught:
        traced(score_mod=broken)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "# here" in str(caught.value)


def test_a_mistake_in_a_helper_shows_the_helper() -> None:
    def helper(x: Any) -> Any:
        return 1 if x > 0 else 2  # here

    text = message(score_mod=lambda score, b, h, q_idx, kv_idx: score * helper(score))
    assert "helper" in text.splitlines()[1]


WRONG_ROWS: dict[str, tuple[Function, str]] = {
    "tuple": (lambda s: (s,), "return p, or p and a dictionary"),  # here
    "row value": (lambda s: (s, s.sum(), 3), "row outputs go into a dictionary"),  # here
    "names": (lambda s: (s, {1: s.sum()}), "return p, or p and a dictionary"),  # here
    "list": (lambda s: [s], "return one traced value"),  # here
    "dim": (lambda s: s - s.sum(dim=0), "leave dim out, or use dim=-1"),  # here
    "max with dim": (lambda s: s - s.max(dim=-1), "amax(dim=-1)"),  # here
    "get_reduce": (lambda s: s - s.get_reduce("product"), "there are sum, max, min, mean, abssum"),  # here
    "condition": (lambda s: s > 0, "torch.where"),  # here
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_row(name: str) -> None:
    function, advice = WRONG_ROWS[name]
    assert advice in message(row=function).partition("help: ")[2]  # behind the line, which holds it, too


def test_a_varying_row_output() -> None:
    def row(s: Any) -> Any:
        e = s.exp()  # here
        return s, {"e": e}

    assert "the row output 'e' differs from key to key" in message(row=row, states=True)


ARITIES: dict[str, tuple[str, Function, str]] = {
    "score_mod": ("score_mod", lambda s, b, h: s, "takes (s, b, h), but is called with (score, b, h, q_idx, kv_idx)"),  # here
    "mask_mod": ("mask_mod", lambda i, j: i >= j, "is called with (b, h, q_idx, kv_idx)"),  # here
    "row": ("row", lambda s, b: s, "is called with (s) or (s, b, h, q_idx)"),  # here
    "query_mod": ("query_mod", lambda: 3, "is called with (x) or (x, b, h, q_idx, d)"),  # here
    "key_mod": ("key_mod", lambda x, y: x, "is called with (x) or (x, b, h, kv_idx, d)"),  # here
    "not called": ("mask_mod", lambda align="top_left": None, "pass f() if that is what makes the function"),  # here
}


@pytest.mark.parametrize("name", ARITIES)
def test_wrong_number_of_parameters(name: str) -> None:
    role, function, expected = ARITIES[name]
    assert expected in message(**{role: function})


def test_not_a_function() -> None:
    with pytest.raises(ArgumentError, match="score_mod must be a function, got int"):
        traced(score_mod=3)


def test_values_do_not_escape() -> None:
    kept: list[Any] = []

    def keep(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        kept.append(score)
        return score

    traced(score_mod=keep)
    with pytest.raises(TraceError, match="outside the function"):
        _ = kept[0] + 1
    assert "belongs to another function" in message(row=lambda s: s * kept[0])  # here
    assert "belongs to another function" in message(row=lambda s: kept[0])  # here
    assert "<traced float" in repr(kept[0])


def test_sizes_outside_of_a_function() -> None:
    with pytest.raises(TraceError, match="only inside the functions"):
        q_len()


def test_every_error_is_an_attn_error() -> None:
    assert issubclass(TraceError, AttnError)
    assert issubclass(TraceError, TypeError)


def test_tracing_works_after_a_failure() -> None:
    message(score_mod=branch)
    assert "attn.score" in traced(score_mod=lambda s, b, h, i, j: s * 2).text
    with pytest.raises(TypeError):
        torch.exp("not traced")  # type: ignore[arg-type]


def test_equal_code_of_two_files_is_told_apart() -> None:
    """As of two cells of a notebook, or two modules: Python takes code objects for equal whatever their file."""
    source = "def twice(s, b, h, i, j):\n    return s + (0 if s > 1 else 1)\n"
    told = []
    for file in ("<cell 1>", "<cell 2>"):
        scope: dict[str, Any] = {}
        exec(compile(source, file, "exec"), scope)
        with pytest.raises(TraceError) as caught:
            traced(score_mod=scope["twice"])
        told.append(str(caught.value))
    assert ["<cell 1>:2" in told[0], "<cell 2>:2" in told[1], "<cell 1>" in told[1]] == [True, True, False], told
