"""The interpreter of machine code for gfx90a: single instructions, a hand-written kernel, faults planted in it, generated kernels."""

import random

import numpy as np
import pytest
import torch

from amd_faults import BY_VALUE, FAULTS, Fault
from amd_forward import OUTPUTS, SOURCE, arguments, expected, forward_code, inputs
from amd_tools import needs_objdump
from attn_mlir.backends.amd import driver
from attn_mlir.backends.amd.compile import compile_code
from attn_mlir.backends.amd.isa import InterpreterError, IsaMachine, doubles, lanes, masks, matrix, memory, pairs, scalar, shared, vector
from attn_mlir.backends.amd.isa.code_object import CodeObject
from attn_mlir.backends.amd.isa.disassembly import parse
from attn_mlir.backends.amd.isa.shared import cycles
from attn_mlir.backends.amd.isa.state import GlobalMemory, GlobalTensor, ThreadBlock, Wave
from attn_mlir.backends.gpu.kernel import KernelCode, KernelParameter
from attn_mlir.errors import CompileError
from gpu_cases import CASES, Sizes, beyond_rounding, failures, formula, one_large_score, ours, results
from gpu_cases import inputs as inputs_of

LANE = np.arange(64, dtype=np.uint32)


def wave(number: int = 0) -> Wave:
    """Lane n has n in v1, n + 0.5 as f32 in v2, 2^31 + n in v3; s[4:5] is 0x100000003."""
    made = Wave(ThreadBlock((0, 0, 0), 4096, GlobalMemory()), number, 64)
    made.v[1], made.v[2], made.v[3] = LANE, (LANE + np.float32(0.5)).astype(np.float32).view(np.uint32), LANE | np.uint32(1 << 31)
    made.s[4], made.s[5] = 3, 1
    return made


def execute(text: str, at: Wave) -> Wave:
    """One instruction."""
    instruction = parse(text)
    step = next(filter(None, (family.step(instruction) for family in (scalar, masks, vector, lanes, pairs, doubles, memory, shared))), None)
    step = step or matrix.step(instruction, True)
    assert step is not None, text
    with np.errstate(all="ignore"):
        step(at)
    return at


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("v_add_u32_e32 v0, 7, v1", LANE + 7),
        ("v_add_u32_e64 v0, v3, v3 clamp", np.full(64, 0xFFFFFFFF)),
        ("v_lshl_or_b32 v0, v1, 4, v1", LANE << 4 | LANE),
        ("v_perm_b32 v0, v1, v3, s4", 0x80 | LANE << 8 | LANE << 16 | LANE << 24),
        ("v_bfe_i32 v0, v1, 0, 2", ((LANE & 3) ^ 2) - 2),
        ("v_mul_hi_u32 v0, v3, 4", np.full(64, 2)),
        ("v_mul_lo_u16_e32 v0, 3, v3", LANE * 3),
        ("v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1", np.where(LANE % 16, LANE - 1, 0)),
        ("v_mov_b32_dpp v0, v1 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf", LANE ^ 1),
        ("v_lshrrev_b32_sdwa v0, v4, v3 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:WORD_1", np.full(64, 0x8000)),
        ("ds_swizzle_b32 v0, v1 offset:swizzle(SWAP,16)", LANE ^ 16),
        ("v_mbcnt_lo_u32_b32 v0, -1, 0", np.minimum(LANE, 32)),
        ("v_cndmask_b32_e64 v0, v1, 9, s[4:5]", np.where(np.isin(LANE, (0, 1, 32)), 9, LANE)),
        ("v_cvt_f32_ubyte0_e32 v0, v1", LANE.astype(np.float32).view(np.uint32)),
        ("v_readfirstlane_b32 s9, v3", None),
        ("v_lshl_add_u64 v[0:1], v[3:4], 3, s[4:5]", (LANE << 3) + 3),
    ],
)
def test_integers(text: str, wanted: np.ndarray | None) -> None:
    at = wave()
    at.v[4] = 0
    execute(text, at)
    if wanted is None:
        assert at.s[9] == 1 << 31
    else:
        assert np.array_equal(at.v[0], np.asarray(wanted).astype(np.uint32))


def high_half(x: np.ndarray) -> np.ndarray:
    """The upper 16 bits of an f32 as a number in f16."""
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.float16).astype(np.float64)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("v_fma_f32 v0, v2, -v2, 1.0", 1 - (LANE + 0.5) ** 2),
        ("v_max3_f32 v0, v2, |v2|, 4.0", np.maximum(LANE + 0.5, 4)),
        ("v_exp_f32_e32 v0, v2", np.exp2(LANE + 0.5)),
        ("v_rcp_f32_e32 v0, v2", 1 / (LANE + 0.5)),
        ("v_mul_f32_e64 v0, v2, v2 clamp", np.minimum((LANE + 0.5) ** 2, 1)),
        ("v_pk_fma_f32 v[0:1], v[2:3], v[2:3], v[2:3] op_sel_hi:[0,0,0]", (LANE + 0.5) ** 2 + LANE + 0.5),
        ("v_div_fixup_f32 v0, v2, 1.0, v2", LANE + 0.5),
        ("v_fma_mix_f32 v0, v2, 2.0, v2", (LANE + 0.5) * 3),
        ("v_fma_mix_f32 v0, v2, 2.0, -v2 op_sel:[0,0,1] op_sel_hi:[0,0,1]", (LANE + 0.5) * 2 - high_half(LANE + 0.5)),
    ],
)
def test_floats(text: str, wanted: np.ndarray) -> None:
    made = execute(text, wave()).v[0].view(np.float32)
    np.testing.assert_allclose(made, wanted.astype(np.float32), rtol=1e-6)


def test_scalars() -> None:
    at = wave()
    execute("s_add_u32 s6, s4, -4", at)
    assert (at.s[6], at.scc) == (0xFFFFFFFF, 0)
    execute("s_addk_i32 s6, 0x2", at)
    assert (at.s[6], at.scc) == (1, 0)
    execute("s_lshl_b64 s[6:7], s[4:5], 4", at)
    assert (at.s[6], at.s[7], at.scc) == (0x30, 0x10, 1)
    assert execute("s_bfe_u64 s[6:7], s[4:5], 0x20001", at).s[6:8] == [1, 0]
    assert execute("s_bfe_i64 s[6:7], s[4:5], 0x20000", at).s[6:8] == [0xFFFFFFFF] * 2
    execute("s_cmp_lt_i32 s4, -1", at)
    assert at.scc == 0
    execute("s_and_saveexec_b64 s[8:9], s[4:5]", at)
    assert at.exec == 0x100000003 and at.s[8:10] == [0xFFFFFFFF] * 2 and at.mask.sum() == 3
    execute("v_mov_b32_e32 v0, 5", at)
    assert (at.v[0] == 5).sum() == 3
    assert execute("s_mul_hi_i32 s6, -1, s4", at).s[6] == 0xFFFFFFFF


def test_the_layout_of_products() -> None:
    """A and B as the instruction wants them: lane l holds row l % 32, four places from 4 (l / 32)."""
    a, b = torch.randn(2, 32, 8, generator=torch.Generator().manual_seed(0)).half()
    at = wave()
    for register, tensor in ((10, a), (12, b)):
        halves = tensor.view(32, 2, 4).transpose(0, 1).reshape(64, 4).contiguous()
        at.v[register : register + 2] = halves.view(torch.int32).numpy().T.view(np.uint32)
    execute("v_mfma_f32_32x32x8f16 v[16:31], v[10:11], v[12:13], 0", at)
    made = torch.from_numpy(at.v[16:32].view(np.float32).copy()).view(4, 4, 2, 32)
    torch.testing.assert_close(made.permute(0, 2, 1, 3).reshape(32, 32), a.float() @ b.float().T, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("opcode", "rows", "terms"), [("v_mfma_f32_32x32x2f32", 32, 2), ("v_mfma_f32_16x16x4f32", 16, 4)])
def test_the_layout_of_products_of_f32(opcode: str, rows: int, terms: int) -> None:
    """Lane l holds one term of row l % rows: number l / rows; nothing is rounded to 16 bits, and C is added."""
    count = rows * rows // 64
    a, b = torch.randn(2, rows, terms, generator=torch.Generator().manual_seed(0))
    at = wave()
    for register, tensor in ((10, a), (11, b)):
        at.v[register] = tensor.T.contiguous().numpy().reshape(64).view(np.uint32)
    at.v[16 : 16 + count] = np.float32(0.5).view(np.uint32)
    execute(f"{opcode} v[16:{15 + count}], v10, v11, v[16:{15 + count}]", at)
    made = torch.from_numpy(at.v[16 : 16 + count].view(np.float32).copy())
    made = made.view(4, 4, 2, 32).permute(0, 2, 1, 3) if rows == 32 else made.view(4, 4, 16).transpose(0, 1)
    torch.testing.assert_close(made.reshape(rows, rows), a @ b.T + 0.5, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("v_add_f64 v[0:1], v[4:5], -v[6:7]", LANE / 3 - (LANE + 1) * 1e-9),
        ("v_add_f64 v[0:1], |v[4:5]|, -0.5", LANE / 3 - 0.5),
        ("v_cvt_f64_f32_e32 v[0:1], v2", LANE + 0.5),
    ],
)
def test_doubles(text: str, wanted: np.ndarray) -> None:
    at = wave()
    for register, x in ((4, LANE / 3), (6, (LANE + 1) * 1e-9)):
        at.v[register : register + 2] = x.astype(np.float64).view(np.uint32).reshape(64, 2).T
    execute(text, at)
    made = at.v[0:2].T.copy().view(np.float64)[:, 0]
    assert np.array_equal(made, wanted)
    assert np.array_equal(execute("v_cvt_f32_f64_e32 v0, v[0:1]", at).v[0].view(np.float32), wanted.astype(np.float32))


def test_unknown_instructions() -> None:
    with pytest.raises(InterpreterError, match="does not know 'v_mfma_f32_4x4x4f16"):
        execute("v_mfma_f32_4x4x4f16 v[0:3], v[4:5], v[4:5], 0", wave())
    with pytest.raises(InterpreterError, match="does not know 'v_mfma_f32_32x32x8f32"):
        execute("v_mfma_f32_32x32x8f32 v[16:31], v4, v5, 0", wave())
    with pytest.raises(InterpreterError, match="does not know 'v_add_f64"):
        execute("v_add_f64 v[0:1], v[4:5], 0x40590000", wave())
    with pytest.raises(InterpreterError, match="does not know"):
        execute("v_add_f32_e64 v0, v1, v1 mul:2", wave())
    with pytest.raises(InterpreterError, match="does not know"):
        execute("v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xa bank_mask:0xf", wave())


def test_memory_is_checked() -> None:
    at = wave()
    data = np.zeros(64, np.uint8)
    at.group.memory.regions = [GlobalTensor(1024, data, False, "x")]
    at.v[8], at.v[9] = 1024 + LANE % 16 * 4, 0
    execute("global_load_dword v0, v[8:9], off", at)
    assert not at.v[0].any()
    with pytest.raises(InterpreterError, match="out of bounds, at byte 64 of x, which has 64"):
        execute("global_load_dword v0, v[8:9], off offset:4", at)
    with pytest.raises(InterpreterError, match="only read"):
        execute("global_store_dword v[8:9], v0, off", at)
    with pytest.raises(InterpreterError, match="shared memory out of bounds"):
        execute("ds_read_b32 v0, v8 offset:3072", at)


def test_races_of_waves() -> None:
    first = wave()
    first.v[4] = LANE * 4
    execute("ds_write_b32 v4, v1", first)
    execute("ds_read_b32 v0, v4", first)
    second = Wave(first.group, 1, 0)
    second.v[:] = first.v
    with pytest.raises(InterpreterError, match="word 0 is written by wave 0 since the last barrier"):
        execute("ds_read_b32 v0, v4", second)
    first.group.epoch += 1
    execute("ds_read_b32 v0, v4", second)
    with pytest.raises(InterpreterError, match="word 0 is read by wave 1"):
        execute("ds_write_b32 v4, v1", first)


def test_conflicts_of_banks() -> None:
    lane = LANE.astype(np.int64)
    assert cycles(lane * 4, 4, False) == 1 and cycles(lane * 128, 4, False) == 32
    assert cycles(lane * 16, 16, False) == 1 and cycles(lane * 8, 8, True) == 1
    assert cycles(lane * 0, 4, False) == 1


def test_other_files() -> None:
    with pytest.raises(CompileError, match="no 64-bit ELF file"):
        CodeObject(b"text")


@needs_objdump
@pytest.mark.parametrize(("columns", "causal"), [(64, True), (128, False)])
def test_forward(columns: int, causal: bool) -> None:
    q, k, v = inputs(columns, 256)
    code, values = forward_code(columns, causal), arguments(q, k, v)
    machine = IsaMachine(code, compile_code(code).code)
    executed = machine.run(values, OUTPUTS, (2, 2, 1), 2, seed=1, count_conflicts=True)
    o, lse = expected(q, k, v, causal)
    assert float((values[3] - o).abs().max()) < 2e-3 and float((values[4] - lse).abs().max()) < 5e-6
    assert executed == sum(machine.counts.values()) and machine.counts["v_mfma_f32_32x32x8f16"] > 0
    assert {ratio for (_, ratio) in machine.conflicts} == {1.0}
    assert machine.trace[-1].opcode == "s_endpgm"


_HERE = ("no barrier before the store to shared memory", "keys fetched one block too far", "rows of K not permuted",
         "mask off by one", "key head of the wrong group")  # fmt: skip


@needs_objdump
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in _HERE], ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_caught(fault: Fault) -> None:
    q, k, v = inputs(64, 256, heads=2 if fault.shows != BY_VALUE else 4, kv_heads=2)
    code, values = forward_code(64, True, SOURCE.replace(fault.old, fault.new)), arguments(q, k, v)
    machine = IsaMachine(code, compile_code(code).code)
    if fault.shows == BY_VALUE:
        machine.run(values, OUTPUTS, (2, 4, 1), 2)
        assert float((values[3] - expected(q, k, v, True)[0]).abs().nan_to_num(torch.inf).max()) > 2e-2
    else:
        with pytest.raises(InterpreterError, match=r"kernel forward, block .*(race|out of bounds)"):
            machine.run(values, OUTPUTS, (2, 2, 1), 2)


@needs_objdump
def test_a_kernel_that_parts_at_a_barrier() -> None:
    body = "int t = __builtin_amdgcn_workitem_id_x(); if (t < 64) __builtin_amdgcn_s_barrier(); x[t] = 1.f;"
    source = '#include "attn_amd.h"\nATTN_KERNEL(128, 1) f(float *x) { ' + body + " }\n"
    code = KernelCode("f", "f", source, (KernelParameter("pointer", 0),), 128, 0, language="hip", arch="gfx90a", flags=())
    machine = IsaMachine(code, compile_code(code).code)
    with pytest.raises(InterpreterError, match="some waves end"):
        machine.run([torch.zeros(128)], {0}, (1, 1, 1))


def test_scratch_of_lanes() -> None:
    at = wave()
    execute("scratch_store_dwordx2 off, v[1:2], off offset:8", at)
    assert np.array_equal(execute("scratch_load_dword v0, off, off offset:12", at).v[0], at.v[2])
    with pytest.raises(InterpreterError, match="out of bounds"):
        execute("scratch_load_dword v0, v1, off offset:20", at)


@needs_objdump
@pytest.mark.parametrize(
    ("name", "arch"), [("causal softmax", "gfx90a"), ("learned slopes", "gfx90a"), ("sigmoid", "gfx90a"), ("softcap", "gfx942")]
)
def test_generated_kernels(name: str, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward, of the machine code that an AMD GPU would run."""
    monkeypatch.setattr(driver, "arch_for", lambda device: arch)
    case, sizes, dtype = CASES[name], Sizes(1, 2, 1, 40, 70, 32, 32), random.Random(name).choice((torch.float16, torch.bfloat16))
    leaves = inputs_of(case, sizes, dtype)
    got = results(ours(case, sizes, device="hip-interpreted"), leaves)
    eager = results(formula(case, sizes), [x.to(case.eager or dtype) for x in leaves])
    exact = results(formula(case, sizes), [x.double() for x in leaves])
    wrong = failures(got, eager, exact, case.factor, ["o", "dq", "dk", "dv", *(f"d{name}" for name in case.tensors(sizes))])
    assert not wrong, wrong


@needs_objdump
def test_one_large_score_among_small_ones() -> None:
    """See test_amd_attention.py: of the machine code, whose compiler may drop neither the rounding of o nor what it takes."""
    case, sizes = CASES["softmax"], Sizes(1, 1, 1, 32, 1024, 64, 64)
    leaves = one_large_score(sizes, 1)
    got = results(ours(case, sizes, device="hip-interpreted"), leaves)
    exact = results(formula(case, sizes), [x.double() for x in leaves])
    assert max(map(beyond_rounding, got, exact)) <= 5e-4
