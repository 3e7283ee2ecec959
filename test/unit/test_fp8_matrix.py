"""8-bit matrix instructions of gfx942, emulated and interpreted: against float64, and with faults planted in what is printed."""

from typing import Any

import pytest
import torch

from amd_planting import Planted, wrong_with
from amd_tools import needs_clang, needs_host_clang
from attn_mlir import Attention, attention, attention_varlen, masks
from attn_mlir.backends.amd import driver
from fp8_cases import ROWS, check_as_flash_attention_3, dense, outliers, scaled

E4, E5, E4Z, E5Z = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz
MI300X = "hip-emulated-gfx942"
FAULTS = (
    Planted("NaN is 240", r"\(size \+ 0x01010101u\) & 0x80808080u", "0u"),
    Planted("-0 is NaN", r"\(size \+ 0x7f7f7f7fu\) & 0x80808080u", "0x80808080u"),
    Planted("the second half of a lane's terms is the first", r"Multiply\(to\[u\], a\.zw,", "Multiply(to[u], a.xy,"),
    Planted("lanes read each other's chunk", r"row, t \+ half\)", "row, t + 1 - half)"),
    Planted("bytes of the transpose change places", r"0x07030602u : 0x05010400u", "0x03070206u : 0x01050004u"),
    Planted("weights are not halves", r"0\.5f \* ", ""),
    Planted("sums are quarters", r"attn::multiply\(sum\w*, 4\.0f\);", ""),
)  # fmt: skip


def inputs(sq: int, skv: int, dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    shapes = ((1, 4, sq, dim), (1, 2, skv, dim), (1, 2, skv, dim))
    return [outliers(*shape, seed=seed).to(dtype) for seed, shape in enumerate(shapes)]


def check(o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, name: str = "softmax",
          **scales: Any) -> None:  # fmt: skip
    wide: Any = q.double(), scaled(k, scales.get("k_descale")), scaled(v, scales.get("v_descale"))
    function = ROWS[name][1]
    check_as_flash_attention_3(o, dense(*wide, row=function, mask=mask), dense(*wide, row=function, mask=mask, weights=v.dtype))


@needs_host_clang
@pytest.mark.parametrize(("dtype", "name"), [(E4, "softmax"), (E4Z, "softmax1"), (E5Z, "sigmoid")])
def test_masks_rows_and_odd_lengths(dtype: torch.dtype, name: str) -> None:
    compute = Attention(row=ROWS[name][0], mask_mod=lambda b, h, i, j: j <= i - 2, return_lse=name == "softmax", device=MI300X)
    for sq, skv in ((1, 1), (17, 127), (127, 17), (130, 1000)):
        q, k, v = inputs(sq, skv, 35, dtype)
        scales: dict[str, Any] = {"k_descale": torch.rand(1, 2) + 0.5, "v_descale": torch.rand(2) + 0.5}
        o, lse = compute(q, k, v, **scales) if name == "softmax" else (compute(q, k, v, **scales), torch.zeros(1))
        mask = torch.ones(sq, skv, dtype=torch.bool).tril(-2)
        check(o, q, k, v, mask, name, **scales)
        assert (o[:, :, : min(2, sq)] == 0).all() and not lse.isnan().any()


@needs_host_clang
def test_decoding_in_parts_and_pages() -> None:
    q, k, v = inputs(1, 300, 64, E4)
    ends = torch.tensor([0, 1]).int(), torch.tensor([0, 300]).int()
    for splits in (1, 3):
        packed = [x[0].transpose(0, 1) for x in (q, k, v)]
        o = attention_varlen(packed[0], packed[1], packed[2], *ends, num_splits=splits, device=MI300X)
        check(o.transpose(0, 1)[None], q, k, v)
    table = torch.randperm(24)[None].int()
    pages = [torch.full((24, 16, 2, 64), float("nan")).to(E4) for _ in "kv"]
    for cache, x in zip(pages, (k, v), strict=True):
        for j in range(300):
            cache[table[0, j // 16], j % 16] = x[0, :, j]
    one = q[0].transpose(0, 1)
    o = attention_varlen(one, pages[0], pages[1], ends[0], seqused_k=torch.tensor([300]).int(), block_table=table, device=MI300X)
    check(o.transpose(0, 1)[None], q, k, v)


@needs_host_clang
@pytest.mark.parametrize("dtype", [E4, E5Z])
def test_every_number_is_what_it_was(dtype: torch.dtype) -> None:
    """Each column of v is one of all numbers, and channel 5 of k has them all; NaN stays where it was."""
    numbers = torch.arange(256).to(torch.uint8).view(dtype)
    v = numbers[None, None, None].expand(1, 1, 256, 256).contiguous()
    q, k = torch.zeros(2, 1, 1, 256, 32).to(dtype)
    compute = Attention(scale=2.0**-9, return_lse=True, device=MI300X)
    o, _ = compute(q, k, v, out_dtype=torch.float32)
    torch.testing.assert_close(o[0, 0, 0], numbers.float(), rtol=1e-6, atol=0, equal_nan=True)
    q[0, 0, :, 5], k[0, 0, :, 5] = numbers.float().nan_to_num().to(dtype), numbers
    assert compute(q, k, v, out_dtype=torch.float32)[1].isnan().all()
    k = k.float().nan_to_num().to(dtype)
    o, lse = compute(q, k, v, out_dtype=torch.float32)
    torch.testing.assert_close(lse.double(), (q.double() @ k.double().mT * 2.0**-9).logsumexp(-1), rtol=1e-5, atol=1e-5)
    assert not o[..., torch.isfinite(numbers.float())].isnan().any()


@needs_clang
@needs_host_clang
@pytest.mark.parametrize("dtype", [E4, E5Z])
def test_machine_code_gives_the_bits_of_the_emulation(dtype: torch.dtype) -> None:
    q, k, v = inputs(3, 40, 32, dtype)
    o = [attention(q, k, v, v_descale=0.5, out_dtype=torch.float32, device=f"hip-{how}-gfx942") for how in ("interpreted", "emulated")]
    assert torch.equal(*o)


@needs_clang
@pytest.mark.parametrize(
    ("dtype", "dim", "products"),
    [
        (E4, 128, "f8E4M3FN as halves in f8E4M3FNUZ"),
        (E4Z, 256, "f8E4M3FNUZ"),
        (E5Z, 64, "f8E5M2FNUZ"),
        (E5, 64, "bf16, as f8E5M2 has infinities and those of gfx942 have none"),
    ],
)
def test_what_products_take_and_that_there_is_no_scratch(dtype: torch.dtype, dim: int, products: str) -> None:
    compute = Attention(mask_mod=masks.causal(), device=MI300X)
    compute(*inputs(1, 1, dim, dtype), k_descale=torch.ones(2), v_descale=torch.ones(2))
    program = driver.compile_program(compute.ir("traced"), "attention", device=MI300X)
    assert f"products {products}" in program.explain()
    (binary,) = program.binaries().values()
    assert binary.spills == binary.scratch == 0 and binary.shared <= 65536


@needs_host_clang
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_caught(fault: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs(40, 70, 32, E4)
    q[:, :, 0, 0], k[:, :, :, 1] = -0.0, -0.0
    v[:, :, 69, 3] = float("nan")
    mask = masks.causal()

    def wrong() -> bool:
        o = attention(q, k, v, mask_mod=mask, device=MI300X)
        o_last = attention(q, k, v, device=MI300X)
        v[:, :, 69, 3] = 0.0
        try:
            check(o, q, k, v, torch.ones(40, 70, dtype=torch.bool).tril())
        except AssertionError:
            return True
        return not o_last[..., 3].isnan().all()

    for program in driver._PROGRAMS.values():
        program._launchers.clear()
    try:
        assert wrong_with(fault, monkeypatch, wrong)
    finally:
        for program in driver._PROGRAMS.values():
            program._launchers.clear()
