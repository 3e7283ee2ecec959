"""8-bit attention on Hopper: as the evaluator of the `warp` dialect runs it, with faults, as it is printed, and as nvcc compiles it."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir import Attention, attention, attention_varlen, masks
from attn_mlir.backends.nvidia import driver
from attn_mlir.backends.nvidia.emulation import driver as emulated
from attn_mlir.backends.nvidia.emulation.kernel import EvaluatedKernel
from attn_mlir.backends.program import OUTLINE
from attn_mlir.diagnostics import DiagnosticError
from attn_mlir.dialects.regions import walk
from attn_mlir.dialects.warp.layouts import column_at
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.reference.warp import Fault
from fp8_cases import ROWS
from generated_code import complaints
from machine_code import compiled
from test_fp8_matrix import check, inputs

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
DEVICE = "cuda-emulated"


@pytest.mark.parametrize(
    ("dtype", "name", "dim", "sizes"),
    [(E4, "softmax", 64, ((1, 1), (17, 127), (200, 140))), (E5, "sigmoid", 128, ((130, 200),)), (E4, "softmax1", 192, ((3, 140),))],
)
def test_masks_rows_and_odd_lengths(dtype: torch.dtype, name: str, dim: int, sizes: tuple[tuple[int, int], ...]) -> None:
    compute = Attention(row=ROWS[name][0], mask_mod=lambda b, h, i, j: j <= i - 2, device=DEVICE)
    for sq, skv in sizes:
        q, k, v = inputs(sq, skv, dim, dtype)
        scales: dict[str, Any] = {"k_descale": torch.rand(1, 2) + 0.5, "v_descale": torch.rand(2) + 0.5}
        o = compute(q, k, v, **scales)
        check(o, q, k, v, torch.ones(sq, skv, dtype=torch.bool).tril(-2), name, **scales)
        assert (o[:, :, : min(2, sq)] == 0).all()


def test_masked_nan_and_the_sum_of_exponentials() -> None:
    q, k, v = inputs(70, 90, 64, E4)
    wanted = attention(q, k[:, :, :60], v[:, :, :60], return_lse=True)
    k[:, :, 60:] = float("nan")
    o, lse = attention(q, k, v, mask_mod=lambda b, h, i, j: j < 60, return_lse=True, device=DEVICE)
    torch.testing.assert_close(lse, wanted[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(o, wanted[0], rtol=0.02, atol=0.02)


SIGNS = torch.tensor([[-0.7, 0.0], [1.5, 1e-30]])
"""Scales by sequence and head: negative, 0, and so small that all weights of a row are the same."""


@pytest.mark.parametrize(("dim", "masked", "name"), [(128, False, "softmax"), (64, True, "softmax"), (128, True, "softmax1")])
def test_scales_of_any_sign(dim: int, masked: bool, name: str) -> None:
    """They leave tiles of scores, not the maximum, which is that of the other end where they are negative."""
    q, k, v = (x.repeat(2, 1, 1, 1) for x in inputs(70, 450, dim, E4))
    scales: dict[str, Any] = {"k_descale": SIGNS * 3, "v_descale": SIGNS}
    o = Attention(row=ROWS[name][0], mask_mod=masks.causal() if masked else None, device=DEVICE)(q, k, v, **scales)
    mask = torch.ones(70, 450, dtype=torch.bool)
    check(o, q, k, v, mask.tril() if masked else mask, name, **scales)


def test_infinite_and_missing_scales_are_infinite_and_missing_scores() -> None:
    q, k, v = (x.abs().to(E4) for x in (y.float() for y in inputs(20, 250, 128, E4)))
    k[:, 1] = (-k[:, 1].float()).to(E4)  # infinite and negative: nothing is there
    o = Attention(device=DEVICE)(q, k, v, q_descale=torch.tensor([float("inf"), float("inf")]))
    wanted = Attention()(q, k, v, q_descale=torch.tensor([float("inf"), float("inf")]))
    torch.testing.assert_close(o, wanted, equal_nan=True)
    assert Attention(device=DEVICE)(q, k, v, q_descale=torch.tensor([float("nan"), 1.0]))[:, 0].isnan().all()


def text_of(dim: int, masked: bool = True, dtype: torch.dtype = E4, out_dtype: torch.dtype | None = None, row: str = "softmax") -> str:
    compute = Attention(row=ROWS[row][0], mask_mod=masks.causal() if masked else None)
    compute(*inputs(1, 1, dim, dtype), k_descale=torch.ones(2), v_descale=torch.ones(2), out_dtype=out_dtype)
    return compute.ir("traced")


@needs_host_clang
@pytest.mark.parametrize("dtype", [E4, E5])
@pytest.mark.parametrize(
    ("dim", "out_dtype"), [(64, None), (64, torch.float16), (64, torch.float32), (128, None), (192, None), (256, None)]
)
def test_what_is_printed_has_all_that_nvrtc_needs(dtype: torch.dtype, dim: int, out_dtype: torch.dtype | None) -> None:
    program = driver.compile_program(text_of(dim, dim != 128, dtype, out_dtype), "attention")
    assert not any(complaints(unit.code) for unit in program.units.values())


@pytest.mark.parametrize(("dim", "masked"), [(64, True), (128, False), (128, True)])
def test_machine_code_for_a_gpu_has_no_spills(dim: int, masked: bool) -> None:
    program = driver.compile_program(text_of(dim, masked), "attention")
    (unit,) = program.units.values()
    assert unit.schedule["emitter"] == "warp" and f"wgmma.mma_async.sync.aligned.m64n{dim}k32.f32.e4m3.e4m3" in unit.code.source
    binary = compiled(unit.code)
    assert binary.spills == binary.stack == 0 and not binary.warnings


@pytest.mark.parametrize("masked", [False, True])
def test_keys_have_one_more_stage_without_a_mask(masked: bool) -> None:
    """They are held until no warp takes its step again."""
    (unit,) = driver.compile_program(text_of(128, masked), "attention").units.values()
    assert [unit.schedule["stages"], unit.schedule.get("first_stages")] == [3, None if masked else 4]
    keys, values = (set(re.findall(rf"\(unsigned\){name}_count\w* % (\d)\)", unit.code.source)) for name in "kv")
    assert (keys, values) == ({"3" if masked else "4"}, {"3"})


@pytest.mark.parametrize(
    ("dim", "masked", "row", "scales", "keys"),
    [
        (256, False, "softmax", False, 96),
        (256, False, "softmax", True, 0),
        (256, True, "softmax", False, 0),
        (256, False, "sigmoid", False, 0),
        (128, False, "softmax", False, 0),
    ],
)
def test_many_keys_come_in_larger_blocks(dim: int, masked: bool, row: str, scales: bool, keys: int) -> None:
    """Where registers are left: from 8192 keys on another kernel runs, which does not spill."""
    compute = Attention(row=ROWS[row][0], mask_mod=masks.causal() if masked else None)
    compute(*inputs(1, 1, dim, E4), **({"k_descale": torch.ones(2)} if scales else {}))
    text = compute.ir("traced")
    (unit,) = driver.compile_program(text, "attention").units.values()
    assert unit.schedule.get("longer", 0) == (8192 if keys else 0)
    (longer,) = driver.compile_program(text, "attention", more={"length": 8192}).units.values()
    assert "longer" not in longer.schedule and (longer.code.source == unit.code.source) == (not keys)
    if keys:
        assert f".m64n{keys}k32." in longer.code.source and f".m64n{keys}k32." not in unit.code.source
        assert compiled(longer.code).spills == 0


@pytest.mark.parametrize(
    ("row", "options", "choices", "rows"),
    [
        ("softmax", {}, {}, 192),
        ("softmax", {"score_mod": lambda s, b, h, i, j: s * SIGNS[b, 0], "return_lse": True}, {}, 192),
        ("softmax", {"score_mod": lambda s, b, h, i, j: s * SIGNS[b, 0] + j}, {}, 128),
        ("softmax", {"score_mod": lambda s, b, h, i, j: torch.tanh(s)}, {}, 128),
        ("softmax1", {}, {}, 128),
        ("softmax", {}, {"block_kv": 128}, 128),
        ("softmax", {}, {"stages": 2}, 128),
    ],
)
def test_softmax_of_128_columns_has_three_warpgroups(row: str, options: dict[str, Any], choices: dict[str, Any], rows: int) -> None:
    """Not where a step needs more registers, or somebody chose something of it."""
    compute = Attention(row=ROWS[row][0], **options)
    compute(*(x.repeat(2, 1, 1, 1) for x in inputs(1, 1, 128, E4)))
    _, units = driver._lower(compute.ir("traced"), "attention", OUTLINE, {"arch": "sm_90a", **choices})
    (unit,) = units.values()
    assert unit.kernel.block_q == rows and unit.code.threads == 128 * (rows // 64 + 1)


def at_places(text: str, **values: Any) -> Any:
    """A C++ expression of integers, for all lanes."""
    text = re.sub(r"attn::swizzle<(\d+)>", r"swizzle[\1]", text).replace("/", "//")
    swizzle = {size: lambda at, size=size: at ^ ((at >> 3) & (size - 16)) for size in (32, 64, 128)}
    text = re.sub(r"swizzle\[(\d+)\]\(", r"swizzle[\1](", text)
    return eval(text, {"swizzle": swizzle}, values)


@pytest.mark.parametrize("dim", [64, 128])
def test_printed_addresses_transpose(dim: int) -> None:
    """ldmatrix, prmt and stmatrix by PTX's definitions on bytes in the places where TMA puts them, where wgmma looks for them."""
    program = emulated.compile_program(text_of(dim), "attention")
    (unit,) = program.units.values()
    source = unit.code.source
    loop = re.search(r"for \(int c = warp; .*?store_matrices\([^\n]*", source, re.DOTALL)
    assert loop
    taken = re.search(r"const uint32_t (taken\w*) = \w+ \+ (.*);", loop[0])
    given = re.search(r"const uint32_t (given\w*) = \w+ \+ (.*);", loop[0])
    read = re.search(r"load_matrices_transposed\((.*), \w+\);", loop[0])
    written = re.search(r"store_matrices\((.*), turned\w*\[0\]", loop[0])
    assert read and written and taken and given
    lane = re.search(r"const int (lane_here\w*) = [^\n]*\n[^\n]*\n[^\n]*#pragma unroll 1\n\s*for \(int c = warp; ", source)
    assert lane
    keys, row = (128, 64) if dim == 64 else (96, 128)
    v = np.random.default_rng(0).integers(0, 256, (keys, dim), np.uint8)
    memory, turned = np.zeros(keys * dim, np.uint8), np.zeros(keys * dim, np.uint8)
    for key in range(keys):
        for column in range(dim):
            at = key * row + column % row
            memory[column // row * keys * row + (at ^ ((at >> 3) & (row - 16)))] = v[key, column]
    lanes = np.arange(32)
    for c in range(dim // 16):
        for r in range(keys // 32):
            bases = {found[1]: at_places(found[2], c=c, **{lane[1]: lanes}) for found in (taken, given)}
            chunks = at_places(read[1], r=r, **bases)
            matrices = np.stack([memory[at : at + 16] for at in chunks]).reshape(4, 8, 8, 2)
            pairs = matrices[:, 2 * (lanes % 4)[:, None] + np.arange(2), (lanes // 4)[:, None]].reshape(4, 32, 4)
            both = [np.concatenate([pairs[h], pairs[h + 1]], 1) for h in (0, 2)]
            words = [np.where(((lanes >= 16) ^ (h % 2))[:, None] == 0, both[h // 2][:, ::2], both[h // 2][:, 1::2]) for h in range(4)]
            to = at_places(written[1], r=r, **bases)
            for h, word in enumerate(words):
                banks = {int(at) // 16 % 8 for at in to[8 * h : 8 * h + 8]}
                assert len(banks) == 8, "rows of a matrix share banks"
                for place in range(8):
                    turned[to[8 * h + place] : to[8 * h + place] + 16] = word[4 * place : 4 * place + 4].reshape(16)
    atom = next(size for size in (128, 64, 32) if keys % size == 0)
    for column in range(dim):
        for place in range(keys):
            at = place // atom * dim * atom + column * atom + place % atom
            assert turned[at ^ ((at >> 3) & (atom - 16))] == v[column_at(place), column]


def test_accumulators_are_operands_as_they_are() -> None:
    """Bytes of the registers of operand a as PTX has them (m64nNk32), and elements of an accumulator where the printed map puts them."""
    program = emulated.compile_program(text_of(64), "attention")
    (unit,) = program.units.values()
    found = re.search(r"if \(r % 2 && r / 4 % 2\) (\w+)\[(.*?)\] = attn::pack_e4m3\((.*?)\);", unit.code.source)
    assert found
    sources = re.findall(r"low\[(.*?)\]", found[3])
    for thread in range(4):
        places = {}
        for last in (r for r in range(64) if r % 2 and r // 4 % 2):
            register = at_places(found[2], r=last)
            step, number = divmod(register, 4)
            for byte, source in enumerate(sources):
                r = last // 8 * 8 + at_places(source, r=last)
                column, half = 8 * (r // 4) + 2 * thread + r % 2, r // 2 % 2
                places[half, 32 * step + 16 * (number // 2) + 4 * thread + byte] = column
                assert number % 2 == half
        assert all(column_at(place) == column for (_, place), column in places.items()) and len(places) == 64


def growing(sq: int, skv: int, dim: int, dtype: torch.dtype, most: float) -> list[torch.Tensor]:
    """Inputs whose scores grow with the key's position, so that weights below an old maximum get too large."""
    q, k, v = inputs(sq, skv, dim, dtype)
    return [q, (k.float() * torch.linspace(0.1, most, skv)[:, None]).to(dtype), v]


@pytest.mark.parametrize(("dtype", "dim", "masked"), [(E4, 64, True), (E4, 128, False), (E5, 128, True), (E4, 256, False)])
def test_warps_step_again_where_scores_grow(dtype: torch.dtype, dim: int, masked: bool) -> None:
    """The old maximum of rows is too small by far; then the step is taken with the new one, and sums and accumulators are rescaled."""
    q, k, v = growing(130, 600, dim, dtype, 8.0)
    compute = Attention(mask_mod=masks.causal() if masked else None, return_lse=True, device=DEVICE)
    o, lse = compute(q, k, v)
    mask = torch.ones(130, 600, dtype=torch.bool)
    check(o, q, k, v, mask.tril() if masked else mask)
    wanted = Attention(mask_mod=masks.causal() if masked else None, return_lse=True)(q, k, v)[1]
    torch.testing.assert_close(lse, wanted, rtol=1e-5, atol=1e-5)


def test_without_its_check_an_old_maximum_is_wrong() -> None:
    """A vote that never holds: weights above the largest number of their type are that number."""
    program = emulated.compile_program(text_of(128, masked=False), "attention")
    (key,) = program._kernels
    kernel = program._kernels[key]
    text = kernel._module.operation.get_asm(print_generic_op_form=True)
    assert text.count("4.480000e+02 : f32") == 1
    with kernel._context:
        program._kernels[key] = EvaluatedKernel(text.replace("4.480000e+02 : f32", "3.000000e+38 : f32"))
    q, k, v = growing(70, 600, 128, E4, 8.0)
    try:
        with pytest.raises((Fault, AssertionError)):
            check(program.run([q, k, v, torch.ones(2), torch.ones(2)])[0], q, k, v)
    finally:
        program._kernels[key] = kernel


def dropped(name: str, number: int = 0) -> Callable[[list[ir.Operation]], None]:
    def edit(ops: list[ir.Operation]) -> None:
        [op for op in ops if op.name == f"warp.{name}"][number].erase()

    return edit


def before_transpose(name: str, behind: bool) -> Callable[[list[ir.Operation]], None]:
    """Drops the last op of a name before (or the first behind) the transposition."""

    def edit(ops: list[ir.Operation]) -> None:
        at = next(n for n, op in enumerate(ops) if op.name == "warp.transpose")
        part = ops[at:] if behind else ops[:at][::-1]
        next(op for op in part if op.name == f"warp.{name}").erase()

    return edit


def not_turned(ops: list[ir.Operation]) -> None:
    next(op for op in ops if op.name == "warp.transpose").erase()


FAULTS = {
    "the transposition does not wait for a free stage": before_transpose("wait", False),
    "no fence behind the transposition": before_transpose("fence_async", True),
    "the raw stage is not given back": before_transpose("arrive", True),
    "values are not transposed": not_turned,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    """In a kernel without a maximum: one with it gives keys back when values before them are multiplied, and a wait follows from others."""
    program = emulated.compile_program(text_of(64, masked=False, row="sigmoid"), "attention")
    (kernel,) = program._kernels.values()
    with kernel._context:
        broken = EvaluatedKernel(kernel._module.operation.get_asm(print_generic_op_form=True))
    with broken._context:
        FAULTS[name](list(walk(broken._kernel)))
    (key,) = program._kernels
    program._kernels[key] = broken
    q, k, v = inputs(70, 520, 64, E4)

    def run() -> None:
        check(program.run([q, k, v, torch.ones(2), torch.ones(2)])[0], q, k, v, name="sigmoid")

    try:
        with pytest.raises((Fault, AssertionError)):
            run()
    finally:
        program._kernels[key] = kernel


@pytest.mark.parametrize(
    ("made", "options", "reason"),
    [
        (inputs(3, 40, 64, E4), {"query_mod": lambda x: x * 0.5}, "a load makes bf16 of f8E4M3FN"),
        (inputs(3, 40, 32, E4), {}, "rows of 64, 128, 192 or 256 elements"),
        (inputs(3, 40, 64, torch.float8_e4m3fnuz), {}, "f8E4M3FNUZ.*there are, with f8E4M3FN and f8E5M2"),
        ([inputs(3, 40, 64, E4)[0].half(), *inputs(3, 40, 64, E4)[1:]], {}, "makes f16 of f8E4M3FN, as mods and wider q need"),
        (inputs(3, 40, 64, E4), {"out_dtype": E4}, "give no 8-bit o yet"),
    ],
)
def test_what_is_refused(made: list[torch.Tensor], options: dict[str, Any], reason: str) -> None:
    with pytest.raises((DiagnosticError, UnsupportedError), match=f"{reason}.*(or compute on the CPU|leave out_dtype out|Use device=.cpu)"):
        attention(made[0], made[1], made[2], device=DEVICE, **options)


def test_packed_sequences_are_refused() -> None:
    q, k, v = (x[0].transpose(0, 1) for x in inputs(40, 40, 64, E4))
    with pytest.raises(DiagnosticError, match="packed sequences and pages take no 8-bit q, k and v on NVIDIA GPUs yet"):
        attention_varlen(q, k, v, torch.tensor([0, 33, 40]).int(), device=DEVICE)
