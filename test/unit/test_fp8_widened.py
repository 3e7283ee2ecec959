"""8-bit k and v beside 16-bit q, caches of half the bytes, on all devices; on Hopper warps of the producer widen what TMA brings."""

import functools
import re
from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir import Attention, attention, attention_varlen, driver, masks, rows
from attn_mlir.backends.gpu.program import BY_PARTS, BY_ROWS, PartsForm
from attn_mlir.backends.nvidia import driver as nvidia
from attn_mlir.backends.program import OUTLINE
from attn_mlir.diagnostics import DiagnosticError
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.emit import Inputs
from fp8_cases import dense, outliers, scaled
from generated_code import complaints
from gpu_cases import GPU
from machine_code import compiled
from program_texts import text_of

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
DEVICES = ["cpu", *(pytest.param(name, marks=needs_host_clang) for name in ("hip-emulated", "hip-emulated-gfx942"))]
DEVICES += [pytest.param("cuda", marks=GPU)]
ERROR = {torch.float16: 2e-3, torch.bfloat16: 1e-2}
Tensor = torch.Tensor


def error(o: Tensor, right: Tensor) -> float:
    return float((o.double().cpu() - right).norm() / (right.norm() + 1e-2))


def on(device: str, *tensors: Tensor) -> list[Tensor]:
    return [x.cuda() if device == "cuda" else x for x in tensors]


def run_on(device: str) -> dict[str, Any]:
    return {} if device == "cuda" else {"device": device}


def attend(device: str, q: Tensor, k: Tensor, v: Tensor, **more: Any) -> Any:
    q, k, v = on(device, q, k, v)
    return attention(q, k, v, **more, **run_on(device))


# ---- numbers, on every device


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("q_type", "kv_type", "dim"), [(torch.float16, E4, 64), (torch.bfloat16, E5, 40)])
@pytest.mark.parametrize(("shape", "queries"), [((), 17), ((2,), 17), ((2, 2), 1)])
def test_odd_lengths_scales_and_rows_without_keys(
    q_type: torch.dtype, kv_type: torch.dtype, dim: int, shape: tuple[int, ...], queries: int, device: str
) -> None:
    """The first two rows see nothing; scales for all, by head, by sequence and head."""
    q, (k, v) = outliers(2, 4, queries, dim).to(q_type), (outliers(2, 2, 77, dim, seed=seed).to(kv_type) for seed in (1, 2))
    scales = {name: torch.rand(shape) + 0.5 for name in ("k_descale", "v_descale")}
    given: dict[str, Any] = {name: on(device, scale)[0] for name, scale in scales.items()}
    o, lse = attend(device, q, k, v, mask_mod=lambda b, h, i, j: j <= i * 9 - 18, return_lse=True, **given)
    seen = torch.arange(77) <= torch.arange(queries)[:, None] * 9 - 18
    right = dense(q.double(), scaled(k, scales["k_descale"]), scaled(v, scales["v_descale"]), mask=seen)
    assert o.dtype == q_type and error(o, right) < ERROR[q_type]
    assert (o[:, :, :2] == 0).all() and (lse[:, :, :2] == -torch.inf).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kv_type", "largest"), [(E4, 448.0), (E5, 57344.0)])
def test_ends_of_the_range(kv_type: torch.dtype, largest: float, device: str) -> None:
    """Every byte is the number that torch has for it; NaN reaches its own column alone."""
    every = torch.arange(256, dtype=torch.uint8).view(kv_type)
    finite = every[torch.isfinite(every.float())]
    v = finite.repeat(2)[: 2 * (len(finite) // 64) * 64].view(1, 1, -1, 64).contiguous()
    q, k = torch.zeros(1, 1, v.shape[2], 64).bfloat16(), torch.zeros(v.shape).to(kv_type)
    flushes = kv_type == E5 and device == "hip-emulated"  # gfx90a, where f16 has no subnormal numbers
    for q_type in (torch.bfloat16,) if flushes else (torch.bfloat16, torch.float16):
        o = attend(device, q.to(q_type), k, v, mask_mod=lambda b, h, i, j: j == i)
        assert torch.equal(o.float().cpu(), v.float())
    assert float(v.float().max()) == largest
    v = torch.ones(1, 1, 130, 64).to(kv_type)
    v[0, 0, 7, 3] = float("nan")
    q, k = torch.zeros(1, 1, 33, 64).bfloat16(), torch.zeros(v.shape).to(kv_type)
    o = attend(device, q, k, v).float().cpu()
    assert torch.isnan(o[0, 0, :, 3]).all()
    o[0, 0, :, 3] = 1.0
    assert torch.equal(o, torch.ones(o.shape))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", [[1, 40, 7], [1, 1, 1]], ids=str)
def test_packed_sequences_and_pages_whose_rest_is_nan(lengths: list[int], device: str) -> None:
    used, heads = [300, 129, 16], 2
    q = outliers(sum(lengths), 4, 64).half()
    pages = [outliers(24, 16, heads, 64, seed=seed).to(E4) for seed in (2, 3)]
    table = torch.randperm(24)[: 3 * 8].view(3, 8).int()
    table = torch.cat([table, table.flip(0), table.flip(1)], 1)
    own = {(int(table[b, p // 16]), p % 16) for b, n in enumerate(used) for p in range(n)}
    for place in {(page, row) for page in range(24) for row in range(16)} - own:
        for x in pages:
            x[place] = float("nan")
    ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]).int()
    scale = torch.rand(3, heads) + 0.5
    given = on(device, q, *pages, ends, torch.tensor(used).int(), table, scale)
    options: dict[str, Any] = {"seqused_k": given[4], "block_table": given[5], "max_q": max(lengths), "max_k": 300, "k_descale": given[6]}
    o = attention_varlen(given[0], given[1], given[2], given[3], **options, **run_on(device))
    for n, (first, last) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
        k, v = (x[table[n].long()].flatten(0, 1).transpose(0, 1)[None, :, : used[n]].double() for x in pages)
        right = dense(q[None, first:last].transpose(1, 2).double(), k * scale[n][None, :, None, None].double(), v)
        assert error(o[None, first:last].transpose(1, 2), right) < 2e-3, n


# ---- what Hopper's kernels are


def lowered(head: int, q: str = "f16", kv: str = "f8E4M3FN", arch: str = "sm_90a", row: Any = rows.softmax, **more: Any) -> Any:
    call = Attention(mask_mod=masks.causal(), row=row)
    call.__dict__.update(_last=Inputs(q, head, head, kv_element=kv, output=q, **more), _form=None)
    _, units = nvidia._lower(call.ir(), "attention", OUTLINE, {"arch": arch})  # pyright: ignore[reportPrivateUsage]
    return next(iter(units.values()))


@pytest.mark.parametrize(("q", "kv"), [("f16", "f8E4M3FN"), ("bf16", "f8E5M2")])
@pytest.mark.parametrize("head", [16, 64, 72, 128, 192, 256, 576])
def test_kernels(head: int, q: str, kv: str) -> None:
    """TMA brings bytes, as wide as they are; the others of the producer's warps widen them, and nothing spills."""
    unit = lowered(head, q, kv)
    half, byte = {"f16": "__half", "bf16": "__nv_bfloat16"}[q], {"f8E4M3FN": "E4M3", "f8E5M2": "E5M2"}[kv]
    source = unit.code.source
    assert unit.schedule["emitter"] == "hopper" and unit.schedule["widen"] >= 2
    found = re.findall(rf"attn::widen_tile<(\d+), (\d+), (\d+), (\d+), \d, false, {half}, attn::{byte}>", source)
    assert len(found) == 2 and all(int(width) % 16 == 0 and int(warps) == unit.schedule["wideners"] for _, _, width, warps in found)
    boxes = {(p.argument, p.box[0], p.swizzle) for p in unit.code.parameters if p.kind == "descriptor" and p.argument in (1, 2)}
    assert {(1, int(found[0][2]), 0), (2, int(found[1][2]), 0)} == boxes
    assert source.count("attn::widen_tile<") == 2 and not complaints(unit.code)
    assert compiled(unit.code).spills <= 8


def test_rows_of_several_passes_send_tiles_in_their_order() -> None:
    """Messages tell which tensor a stage is of: a first pass over keys alone needs no values."""

    def above_mean(s: Any) -> Any:
        return (s - s.mean()).sigmoid() * (s - s.mean()).exp()

    unit = lowered(64, row=above_mean)
    sent = unit.code.source.count("attn::store_shared_int4(shared + kRawMessages")
    assert unit.schedule["widen"] >= 2 and sent > 4 and not complaints(unit.code), (sent, unit.schedule)


@functools.lru_cache(1)
def single_queries(dim: int, values: int) -> Any:
    q, used = torch.randn(3, 8, dim).bfloat16(), torch.tensor([3, 5, 9]).int()
    k, v = (torch.randn(6, 16, 2, columns).to(E4) for columns in (dim, values))
    text = text_of(lambda: attention_varlen(q, k, v, torch.arange(4).int(), seqused_k=used, block_table=torch.arange(6).int().view(3, 2)))
    return driver.compile_derivative(text, "cuda", "", [])


@pytest.mark.parametrize(("dim", "values"), [(64, 64), (128, 128), (256, 256), (576, 512)])
def test_parts_of_pages(dim: int, values: int) -> None:
    made = single_queries(dim, values)
    parts, combine = made.lower_parts()
    assert parts.schedule["widen"] >= 2 and parts.kernel.paged and "one < some" not in parts.code.source
    assert not any(complaints(unit.code) for unit in (parts, combine)) and compiled(parts.code).spills <= 8


def test_pages_of_any_size_are_refused_and_values_among_keys_are_widened_twice() -> None:
    made = single_queries(576, 512)
    assert all(made.lower_parts(PartsForm(False, how)) is None for how in (BY_ROWS, BY_PARTS))
    k = torch.zeros(1, 1, 4, 576).to(E4)
    assert not made.shares_values([torch.zeros(1, 1, 1, 576).half(), k, k[..., :512]])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"head": 64, "arch": "sm_80"}, "sm_80 has no 8-bit"),
        ({"head": 64, "q": "f32"}, "beside q of f32"),
        ({"head": 64, "kv": "f8E4M3FNUZ"}, "f8E4M3FNUZ"),
    ],
)
def test_what_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises((DiagnosticError, UnsupportedError), match=f"{reason}.*or compute on the CPU"):
        lowered(**options)
