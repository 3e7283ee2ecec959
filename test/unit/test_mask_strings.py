"""`masks.parse`: what CK's mask strings mean, against CK's own coordinates; key ranges and classes of blocks are exactly those."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from api_helpers import assert_near, inputs, reference
from attn_mlir import Attention, AttentionEngine, OnlineSoftmax, attention, create_block_mask, masks, meta_tensor
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.intervals.classify import classify
from attn_mlir.passes.resolve_masks import ResolveMasks
from contexts import loaded_context
from masks import dense_classes

SINKS = ["t:3,2,2", "b:3,2,4", "t:2,-1,3", "b:0,0,1", "t:1,0,99", "b:-1,1,5", "t:4,1,0"]
GENERIC = ["g:5,1", "g:2,4", "g:-1,4", "g:5,-2", "g:1,1", "g:0,6", "g:7,0", "g:99999999999999999999999,1"]
XFORMERS = ["xt:5", "xb:4", "xt:1", "xb:1", "xt:0", "xb:-3"]
NAMES = ["0", "1", "2", "t", "b"]


def coordinates(text: str, sq: int, skv: int) -> tuple[int, int, int]:
    """y, x and the number of sink columns of CK's generic attention mask coordinates, which keep i - y < j < i + x."""
    kind, _, rest = text.partition(":")
    numbers = [min(int(word), 1 << 40) for word in rest.split(",")] if rest else []
    if kind == "0":
        return sq, skv, 0
    if kind == "g":
        return numbers[0], numbers[1], 0
    if not numbers:
        numbers = [-1, 0]
    elif kind.startswith("x"):
        width = numbers[0]
        numbers = [width // 2, width - 1 - width // 2] if width > 0 else [-1, 0]
    left, right, sink = (*numbers, 0)[:3]
    if kind in ("1", "t", "xt"):
        left, right = (sq - 1 if left < 0 else left), (skv - 1 if right < 0 else right)
        return 1 + left, 1 + right, sink
    left, right = (skv - 1 if left < 0 else left), (sq - 1 if right < 0 else right)
    return 1 + left + sq - skv, 1 + right + skv - sq, sink


def dense(text: str, sq: int, skv: int) -> Any:
    y, x, sink = coordinates(text, sq, skv)
    i, j = np.arange(sq)[:, None], np.arange(skv)
    return ((j > i - y) | (j < sink)) & (j < i + x)


@functools.cache
def module_of(text: str) -> Any:
    context = loaded_context()
    with context:
        module = ir.Module.parse(text)
    assert ResolveMasks().run(module.operation)
    return module


def resolved(text: str) -> tuple[Any, list[int]]:
    """The module of a mask string after attn-resolve-masks, and the numbers that it takes."""
    entry, scan = Attention(mask_mod=masks.parse(text))._entry(Inputs("f32", 64, 64))
    return module_of(entry.traced.text), entry.captures(scan, 0.0)


def check(text: str, lengths: Any, block: tuple[int, int]) -> None:
    """Compares the class of every block, and the first and last key of every block of rows, with the dense mask."""
    with LOCK:
        module, numbers = resolved(text)
        for sq, skv in lengths:
            kept = dense(text, sq, skv)
            found = classify(module.operation, numbers, sq, skv, *block)
            wanted = dense_classes(lambda b, h, i, j, kept=kept: kept[i, j], [], sq, skv, *block)
            np.testing.assert_array_equal(found.grid[0, 0], wanted, f"{text} {sq} {skv}")
            rows = [kept[begin : begin + block[0]].any(0).nonzero()[0] for begin in range(0, sq, block[0])]
            for (begin, _, _, end), keys in zip(found.bounds[0, 0].tolist(), rows, strict=True):
                assert (begin, end) == (keys[0], keys[-1] + 1) if len(keys) else begin == end, (text, sq, skv)


@pytest.mark.parametrize("kind", ["t", "b"])
def test_every_small_window(kind: str) -> None:
    """Blocks of one position: the mask itself."""
    small = list(itertools.product(range(1, 8), repeat=2))
    for left, right in itertools.product(range(-1, 8), repeat=2):
        check(f"{kind}:{left},{right}", small, (1, 1))


@pytest.mark.parametrize("text", [*NAMES, *XFORMERS, *GENERIC, *SINKS])
def test_others(text: str) -> None:
    check(text, itertools.product((1, 2, 5, 7), repeat=2), (1, 1))
    check(text, [(1, 1), (64, 100), (100, 64), (173, 173)], (16, 16))


@pytest.mark.parametrize("text", ["t:30,5", "b:30,5", "t:-1,9", "b:9,-1", "xb:20", "g:40,-3", "b:20,3,17"])
def test_bounds_of_larger_blocks(text: str) -> None:
    check(text, [(1, 40), (64, 100), (100, 64), (173, 173)], (16, 32))


def expected(text: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    kept = torch.from_numpy(dense(text, q.shape[2], k.shape[2]))
    return reference(q, k, v, mask_mod=lambda b, h, i, j: kept[i, j])[0]


def test_where_a_mask_function_is_taken() -> None:
    q, k, v = (x.requires_grad_() for x in inputs(b=1, sq=40, skv=29))
    wanted = expected("b:9,3", q, k, v)  # the first rows are empty
    for mask in ("b:9,3", create_block_mask("b:9,3", None, None, 40, 29), masks.and_("b:9,-1", "b:-1,3"), masks.not_(masks.not_("b:9,3"))):
        o = attention(q, k, v, mask_mod=mask)
        assert_near(o.detach(), wanted.detach())
    for made, right in zip(*(torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (o.double(), wanted)), strict=True):
        assert_near(made, right)
    q, k, v = inputs()
    assert_near(Attention(mask_mod="g:-2,9")(q, k, v), expected("g:-2,9", q, k, v))


@pytest.mark.parametrize("argument", ["mask_mod", "block_mask"])
def test_engine(argument: str) -> None:
    q, k, v = inputs(h=2, sq=40, skv=29, dv=16)
    meta = [meta_tensor(2, 2, length, 16, dtype=torch.float32) for length in (40, 29, 29)]
    given: dict[str, Any] = {argument: "b:9,3,2"}
    engine = AttentionEngine(meta, score_mod=lambda s, custom, b, h, i, j: s * 0.25, online_func=OnlineSoftmax(), **given)
    o = engine(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    assert_near(o, expected("b:9,3,2", q, k, v))


def test_compile() -> None:
    q, k, v = inputs(sq=40, skv=29)
    whole = Attention(mask_mod="0")
    both = torch.compile(lambda q, k, v, text: attention(q, k, v, mask_mod=text) + whole(q, k, v), fullgraph=True, backend="eager")
    for text in ("b:9,3", "t:3,5,2"):
        assert_near(both(q, k, v, text), expected(text, q, k, v) + expected("0", q, k, v))


@pytest.mark.parametrize(
    "text",
    ["", "3", "t:1", "t:1,2,3,4", "t:a,b", "t:1, 2", "b:", "x:1", "xt:", "xt:1,2", "g:1", "g:0,1", "t:1,2,-1", "T:1,2", "t:1.5,2", "t:²,1"],
)
def test_unknown_strings_show_the_grammar(text: str) -> None:
    q, k, v = inputs()
    for function in (masks.parse, lambda text: attention(q, k, v, mask_mod=text), lambda text: Attention(mask_mod=text)):
        with pytest.raises(ArgumentError, match=r"(?s)^(unknown mask|mask|the sink of mask) '.*'.* a mask string is one of.*b:l,r"):
            function(text)


def test_no_mask_costs_nothing() -> None:
    assert "attn.mask" not in Attention(mask_mod="0").ir("attn-simplify")
    named, causal = Attention(mask_mod="t").ir("attn-simplify"), Attention(mask_mod=masks.causal()).ir("attn-simplify")
    assert named == causal
    with pytest.raises(ArgumentError, match="a mask string is one such as"):
        masks.parse(3)  # type: ignore[arg-type]
