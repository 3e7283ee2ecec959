"""Keys in pages through emulated kernels for AMD GPUs: the bits of packed keys, in parts, of wide heads, of 8-bit caches."""

from typing import Any

import pytest
import torch

from amd_tools import needs_clang, needs_host_clang
from attn_mlir import ArgumentError, attention_varlen, masks
from attn_mlir.backends.amd import driver
from attn_mlir.backends.amd.compile import compile_all
from test_varlen_paged import in_pages, ints, packed, paged
from varlen_cases import offsets

pytestmark = needs_host_clang
Tensor = torch.Tensor
EMULATED = "hip-emulated"
LENGTHS = (17, 1, 0, 5, 140), (100, 77, 3, 0, 140)


def given(queries: int, keys: int, columns: tuple[int, int], heads: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((queries, heads[0], columns[0]), (keys, heads[1], columns[0]), (keys, heads[1], columns[1]))
    q, k, v = (torch.randn(shape).to(dtype) for shape in shapes)
    return q, k, v


@pytest.mark.filterwarnings("error::attn_mlir.PerformanceWarning")
@pytest.mark.parametrize(("columns", "window"), [((64, 64), False), ((20, 33), True)])
def test_bits_are_those_of_packed_keys(columns: tuple[int, int], window: bool) -> None:
    mask = masks.sliding_window(37, 0, align="bottom_right") if window else masks.causal("bottom_right")
    qkv = given(sum(LENGTHS[0]), sum(LENGTHS[1]), columns, (4, 2), torch.bfloat16 if window else torch.float16)
    options: dict[str, Any] = {
        "mask_mod": mask,
        "return_lse": True,
        "value_mod": lambda x, b, h, i, d: x * (1 + 0.1 * i),
        "device": EMULATED,
    }
    o, lse = packed(qkv, LENGTHS, **options)
    for size, heads_first in ((16, False), (48, True), (256, False)):
        made, sums = paged(qkv, LENGTHS, size, heads_first, **options)
        assert torch.equal(made, o) and torch.equal(sums, lse)
    exact = packed(tuple(x.double() for x in qkv), LENGTHS, mask_mod=mask, value_mod=options["value_mod"])  # type: ignore[arg-type]
    assert (o - exact).abs().max() < (2e-2 if window else 4e-3) * exact.abs().max()


def test_decoding_of_a_latent_cache() -> None:
    """One query each, 16 heads are rows; 576 columns of keys, of which values are the first 512; three parts."""
    lengths = (1, 1, 0, 1), (100, 277, 3, 400)
    q, k, _ = given(3, 780, (576, 1), (16, 1), torch.float16)
    options: dict[str, Any] = {"max_q": 1, "max_k": 400, "num_splits": 3, "device": EMULATED}
    made = paged((q, k, k[..., :512]), lengths, 64, **options)
    assert torch.equal(made, packed((q, k, k[..., :512]), lengths, **options))
    exact = packed((q.double(), k.double(), k[..., :512].double()), lengths)
    torch.testing.assert_close(made.double(), exact, atol=1e-3, rtol=1e-3)


def test_caches_of_8_bits() -> None:
    q, k, v = given(7, 100, (64, 64), (4, 2), torch.bfloat16)
    (keys, table), (values, _) = (in_pages(x, (60, 40), 16) for x in (k, v))
    keys, values = (x.nan_to_num().to(torch.float8_e4m3fn) for x in (keys, values))
    options: dict[str, Any] = {"seqused_k": ints(60, 40), "block_table": table, "k_descale": 0.5, "v_descale": 2.0}
    o = attention_varlen(q, keys, values, offsets((3, 4)), **options, device=EMULATED)
    exact = attention_varlen(q.double(), keys, values, offsets((3, 4)), **options, out_dtype=torch.float64)
    assert (o - exact).abs().max() < 1e-2 * exact.abs().max()


@pytest.mark.filterwarnings("ignore::attn_mlir.PerformanceWarning")
def test_single_queries_of_negated_tensors() -> None:
    """Memory of such tensors holds the negatives of their elements."""
    tensors, (queries, keys) = given(3, 300, (64, 64), (4, 2), torch.float16), (offsets([1] * 3), offsets([100] * 3))
    options: dict[str, Any] = {"max_q": 1, "max_k": 100, "device": EMULATED}
    wanted = attention_varlen(*tensors, queries, keys, **options)
    for number in range(3):
        q, k, v = (torch._neg_view(-x) if n == number else x for n, x in enumerate(tensors))  # pyright: ignore[reportPrivateImportUsage]
        assert torch.equal(attention_varlen(q, k, v, queries, keys, **options), wanted)


def test_what_is_refused() -> None:
    q, k, v = given(3, 40, (32, 32), (2, 2), torch.float16)
    with pytest.raises(ArgumentError, match="pages of 24 positions, and kernels for GPUs take multiples of 16"):
        paged((q, k, v), ((3,), (40,)), 24, device=EMULATED)
    cache, _ = in_pages(k, (40,), 16)
    table = torch.tensor([[1, 9, 0]], dtype=torch.int32)
    with pytest.raises(ArgumentError, match=r"block_table\[0, 1\] is 9, but k has 5 pages"):
        attention_varlen(q, cache, cache, offsets((3,)), seqused_k=ints(40), block_table=table, device=EMULATED)


@needs_clang
@pytest.mark.parametrize("columns", [128, 256])
def test_kernels_need_no_scratch(columns: int) -> None:
    before = set(driver._PROGRAMS)
    q, k, v = given(1, 16, (columns, columns), (2, 1), torch.float16)
    paged((q, k, v), ((1,), (16,)), 16, mask_mod=masks.causal("bottom_right"), device=EMULATED, max_q=5, max_k=16)
    (program,) = (driver._PROGRAMS[key] for key in driver._PROGRAMS if key not in before)
    for binary in compile_all([unit.code for unit in program.units.values()]):
        assert binary.spills == binary.scratch == 0
