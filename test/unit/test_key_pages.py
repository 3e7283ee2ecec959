"""Key lists as tables of pages: the results of lists, by kernels of a CPU that reads pages; Hopper's emitter makes its own."""

import functools
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import driver, masks, rows
from attn_mlir.api import key_pages, key_sequences
from attn_mlir.api.dropout import NONE
from attn_mlir.api.inputs import check_inputs
from attn_mlir.api.key_lists import check_key_lists
from attn_mlir.api.key_pages import attention_in_pages
from attn_mlir.api.options import Options
from attn_mlir.backends.gpu.program import BY_ROWS, PartsForm
from generated_code import complaints
from key_list_cases import agree, draw, inputs

SIZES = (2, 4, 2, 70, 130, 32)
MODS = ("query_mod", "key_mod", "value_mod", "score_mod", "mask_mod")


def in_pages(qkv: Any, index: torch.Tensor, block: tuple[int, int], layout: Any = "bhsd", lse: bool = False, **mods: Any) -> Any:
    problem = check_inputs(qkv[0], qkv[1], qkv[2], layout)
    functions = (*[mods.get(name) for name in MODS], mods.get("row", rows.softmax))
    form = check_key_lists(index, block, problem.sizes, problem.device)
    return attention_in_pages(tuple(qkv), Options(functions, None, layout, lse), NONE, (index, form, problem))


def agrees(block: tuple[int, int], lists: int, layout: Any = "bhsd", lse: bool = True, sizes: Any = SIZES, **mods: Any) -> None:
    qkv = [x.detach() for x in inputs(sizes)]
    qkv = [x.transpose(1, 2).contiguous() for x in qkv] if layout == "bshd" else qkv
    index = draw(sizes, block, lists, 3)
    wanted: Any = attn_mlir.attention(*qkv, key_index=index, key_block=block, layout=layout, return_lse=lse, **mods)
    found = in_pages(qkv, index, block, layout, lse, **mods)
    assert found is not None
    for got, want in zip(found[0], wanted, strict=True) if lse else [(found[0], wanted)]:
        there = torch.isfinite(want)
        assert got.shape == want.shape and torch.equal(torch.isfinite(got), there)
        agree([got[there]], [want[there]])


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("lists", [1, 2, 4])
def test_lists_of_all_heads_and_orders(lists: int, layout: str) -> None:
    """The last block is shorter than the others, some are listed twice, some lists are empty."""
    agrees((32, 32), lists, layout)


@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
@pytest.mark.parametrize(("block", "lists"), [((1, 16), 2), ((32, 32), 1), ((7, 64), 2), ((200, 48), 4)])
def test_causal_masks_are_ends_of_lists(align: Any, block: tuple[int, int], lists: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a query sees is the beginning of its list: no function asks for positions, and of single queries none is left."""
    ends: list[Any] = []
    mask_of = key_sequences.mask_of_seen
    monkeypatch.setattr(key_sequences, "mask_of_seen", lambda *given: ends.append(mask_of(*given)) or ends[-1])
    agrees(block, lists, mask_mod=masks.causal(align))
    agrees(block, lists, mask_mod=masks.causal(align=align), score_mod=lambda s, b, h, i, j: s + 0.01 * (j - i) * h)
    assert len(ends) == 2 and all((end is None) == (block[0] == 1) for end in ends)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("mask", [None, masks.causal()], ids=["all", "causal"])
def test_later_calls_of_ready_made_functions_see_their_own_tensors(mask: Any, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a short way: other lists, tensors and causal masks, and values of rows that were not asked for before."""
    monkeypatch.setattr(key_pages, "_TEMPLATES", {})
    sizes = (2, 4, 2, 70, 192, 32)
    for number in range(3):
        for block, lists in (((7, 64), 2), ((32, 96), 1), ((1, 16), 4)):
            agrees(block, lists, layout, lse=number == 1, sizes=sizes, mask_mod=mask)
        agrees((7, 64), 2, layout, sizes=sizes, mask_mod=masks.causal("bottom_right") if number == 1 else mask)
        agrees((7, 64), 2, layout, sizes=sizes, mask_mod=mask, row=rows.sigmoid, lse=False)
        agrees((7, 64), 2, layout, sizes=sizes, mask_mod=lambda b, h, i, j: i + 50 > j)
    assert len(key_pages._TEMPLATES) >= 2


def test_functions_see_true_places() -> None:
    slopes, bias = torch.rand(4), torch.randn(130)
    mask = masks.causal("bottom_right")
    agrees((1, 16), 2, mask_mod=mask, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i) + bias[j] + b)
    mods: dict[str, Any] = {
        "query_mod": lambda x, b, h, i, d: x * (1 + 0.02 * i + h),
        "key_mod": lambda x, b, h, j, d: x * (1 + 0.1 * h),
        "value_mod": lambda x, b, h, j, d: x * (1 + 0.01 * j + h),
    }
    for lists in (4, 2, 1):  # of fewer lists than heads, heads become rows
        agrees((7, 64), lists, lse=False, row=rows.sigmoid, mask_mod=lambda b, h, i, j: i + 60 >= j + h, **mods)
    agrees((1, 16), 2, query_mod=lambda x: x * 0.5, key_mod=torch.tanh, value_mod=torch.nn.Tanh())


@pytest.mark.parametrize("entries", [[0, -1, -1, -1], [3, -1], [3, -1, -1, -1, -1, -1, -1]], ids=str)
def test_reads_at_blocks_that_are_none_are_inside(entries: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks divide the keys, and lists have gaps, or are longer than there are blocks."""
    monkeypatch.setenv("ATTN_MLIR_CHECK", "1")
    qkv, bias = [x.detach() for x in inputs((1, 2, 2, 32, 128, 16))], torch.randn(128)
    index = torch.tensor(entries, dtype=torch.int32).view(1, 1, 1, -1)
    mods: dict[str, Any] = {"score_mod": lambda s, b, h, i, j: s + bias[j]}
    found = in_pages(qkv, index, (32, 32), **mods)
    assert found is not None
    agree([found[0]], [attn_mlir.attention(*qkv, key_index=index, key_block=(32, 32), **mods)])


def test_a_function_that_wraps_a_mask_is_asked() -> None:
    causal = masks.causal()

    @functools.wraps(causal)
    def window(b: Any, h: Any, i: Any, j: Any) -> Any:
        return causal(b, h, i, j) & (i - j < 20)

    agrees((32, 32), 1, mask_mod=window)


def test_single_keys_are_pages_of_single_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a device has kernels for them, as Hopper; a CPU's read any pages, but say nothing of it."""
    qkv = [x.detach() for x in inputs(SIZES)]
    assert in_pages(qkv, draw(SIZES, (1, 1), 2, 9), (1, 1)) is None
    monkeypatch.setattr(key_pages, "has_gathers", lambda *_: True)
    slopes = torch.rand(4)
    agrees((1, 1), 2, mask_mod=masks.causal("bottom_right"), score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i))
    agrees((1, 24), 1)
    assert in_pages(qkv, draw(SIZES, (2, 1), 2, 9), (2, 1)) is None


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Programs of calls, the last one last."""
    seen, before = list[str](), key_pages.looks_at_scores_alone

    def looked_at(text: str) -> bool:
        seen.append(text)
        return before(text)

    monkeypatch.setattr(key_pages, "_TEMPLATES", {})
    monkeypatch.setattr(key_pages, "looks_at_scores_alone", looked_at)
    return seen


def test_hopper_gathers_single_keys(texts: list[str]) -> None:
    """Lanes of the producer copy rows; with MLA's values among the keys, too. Nothing spills, as far as nvcc is there to ask."""
    for columns, values in ((128, 128), (576, 512)):
        q, k = torch.randn(1, 32, 3, columns).half(), torch.randn(1, 1, 50, columns).half()
        in_pages((q, k, k[..., :values]), draw((1, 32, 1, 3, 50, 0), (1, 16), 1, 3), (1, 16))
        made: Any = driver.compile_derivative(texts[-1], "cuda", "", [])
        assert made.gathers()
        for units in (made.lower_parts(PartsForm(shared, BY_ROWS)) for shared in ((False, True) if columns > 256 else (False,))):
            assert units[0].schedule["gather"] == 1 and not any(complaints(unit.code) for unit in units)
            text = units[0].code.source
            assert "attn::gather_rows<" in text and "k_map" not in text
            # Nothing is divided where pages have a power of two of rows, and sums are stored in pairs.
            assert "attn::gather_page(" in text and "% k_n2" not in text and "reinterpret_cast<float2 &>(o[" in text


def test_what_needs_a_table() -> None:
    qkv = inputs(SIZES)
    index = draw(SIZES, (32, 32), 2, 3)
    assert in_pages(qkv, index, (32, 32)) is None  # q needs a gradient
    with torch.no_grad():
        assert in_pages(qkv, draw(SIZES, (32, 8), 2, 3), (32, 8)) is None
        sinks = torch.rand(4)
        assert in_pages(qkv, index, (32, 32), row=rows.softmax_sink(sinks)) is None  # of heads of the whole


def test_hopper_makes_the_kernels(texts: list[str]) -> None:
    qkv = [x.detach() for x in inputs((*SIZES[:5], 128), torch.float16)]
    in_pages(qkv, draw(SIZES, (64, 64), 2, 3), (64, 64), mask_mod=masks.causal())
    made: Any = driver.compile_derivative(texts[-1], "cuda", "", [])
    units = [*made.units.values(), *made.lower_parts()]
    assert [unit.schedule["emitter"] for unit in units] == ["hopper", "hopper", "simt"] and units[0].kernel.paged
    assert not any(complaints(unit.code) for unit in units)
