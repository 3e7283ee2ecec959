"""The emulation of AMD GPUs on the CPU: right results of a hand-written kernel, and an error or wrong values for every planted fault."""

import math
from pathlib import Path

import pytest
import torch

from amd_faults import BY_VALUE, FAULTS, Fault
from amd_forward import OUTPUTS, ROWS, SOURCE, arguments, expected, forward_code, inputs
from amd_tools import needs_host_clang
from attn_mlir.backends import disk_cache
from attn_mlir.backends.amd.emulation import EmulatedHipKernel, EmulationError, build
from attn_mlir.backends.gpu.kernel import KernelCode, KernelParameter
from attn_mlir.errors import CompileError

pytestmark = needs_host_clang
_PREAMBLE = '#include "attn_amd_emulated.h"\n'


def run(code: KernelCode, tensors: list[torch.Tensor], seed: int = 0, flush: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = tensors
    values = arguments(q, k, v)
    blocks = tensors[0].shape[2] // ROWS
    EmulatedHipKernel(code).run(values, OUTPUTS, (blocks, tensors[0].shape[1], 1), blocks, seed, flush)
    return values[3], values[4]  # type: ignore[return-value]


def errors(code: KernelCode, tensors: list[torch.Tensor], causal: bool, seed: int = 0) -> tuple[float, float]:
    q, k, v = tensors
    made, wanted = run(code, tensors, seed), expected(q, k, v, causal)
    return tuple(float((a - b).abs().nan_to_num(torch.inf).max()) for a, b in zip(made, wanted, strict=True))  # type: ignore[return-value]


@pytest.fixture
def optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code as users of "hip-emulated" have it. Elsewhere clang does not optimise, which takes most of its time."""
    monkeypatch.setenv("ATTN_MLIR_LLVM_LEVEL", "2")


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("columns", [64, 128])
def test_forward(columns: int, causal: bool) -> None:
    o, lse = errors(forward_code(columns, causal), inputs(columns, 256), causal)
    assert o < 2e-3 and lse < 5e-6


def test_the_order_of_waves_changes_nothing() -> None:
    tensors = inputs(64, 256)
    first = run(forward_code(64, True), tensors, seed=1)
    for seed in (2, 3):
        assert all(torch.equal(a, b) for a, b in zip(first, run(forward_code(64, True), tensors, seed), strict=True))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_caught(fault: Fault) -> None:
    check_caught(fault)


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("fault", FAULTS[::5], ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_caught_in_optimised_code(fault: Fault) -> None:
    check_caught(fault)


def check_caught(fault: Fault) -> None:
    assert SOURCE.count(fault.old) >= 1
    code = forward_code(64, True, SOURCE.replace(fault.old, fault.new))
    tensors = inputs(64, 256, heads=4, kv_heads=2)
    if fault.shows == BY_VALUE:
        o, lse = errors(code, tensors, True)
        assert o > 2e-2 or lse > 1e-2
    else:
        with pytest.raises(EmulationError, match=fault.shows):
            run(code, tensors)


@pytest.mark.usefixtures("optimised")
def test_products_flush_subnormal_numbers() -> None:
    """One score of 10.4 among thousands of 0, whose weights are subnormal in f16: without the factor 2^12 they vanish from the sums."""
    length = 2048
    q, k = torch.zeros(2, 1, 1, length, 64).half()
    v = (1 + 0.1 * torch.randn(1, 1, length, 64, generator=torch.Generator().manual_seed(0))).half()
    q[..., 0], k[:, :, 0, 0], v[:, :, 0] = 8, 10.4, -1
    o = expected(q, k, v, False)[0][..., :ROWS, :]
    for bias, flush, low, high in (("12", True, 0, 5e-4), ("0", False, 0, 5e-4), ("0", True, 2e-2, 1)):
        code = forward_code(64, False, SOURCE.replace("BIAS = 12.0f", f"BIAS = {bias}.0f"))
        values = arguments(q, k, v)
        EmulatedHipKernel(code).run(values, OUTPUTS, (1, 1, 1), 1, 0, flush)
        assert low <= float((values[3][..., :ROWS, :] - o).abs().max()) < high  # type: ignore[index]


def kernel(body: str, shared: int = 0, threads: int = 64) -> KernelCode:
    """One that has a pointer `x` to argument 0, f32."""
    memory = f"__shared__ __attribute__((aligned(16))) unsigned char memory[{shared}];\n" if shared else ""
    source = (
        f"{_PREAMBLE}ATTN_KERNEL({threads}, 1) f(float *__restrict__ x) {{\n{memory}int t = __builtin_amdgcn_workitem_id_x();\n{body}\n}}\n"
    )
    return KernelCode("f", "f", source, (KernelParameter("pointer", 0),), threads, shared, language="hip", arch="gfx90a")


def test_an_error_tells_the_place_and_the_line() -> None:
    code = kernel("x[t + 1] = 1.f;")
    with pytest.raises(
        EmulationError, match=r"kernel f, work-group \(0, 0, 0\), wave 0, lane 63: writes 4 bytes .*argument 0, which has 256"
    ) as error:
        EmulatedHipKernel(code).run([torch.zeros(64)], {0}, (1, 1, 1))
    assert "line 4: x[t + 1] = 1.f;" in str(error.value)


def test_damaged_libraries_on_disk_are_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the hashes of the entries are right."""
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path))
    code = kernel("x[t] = 1.f;")
    build._runtime.cache_clear()
    build._precompiled.cache_clear()
    EmulatedHipKernel(code)
    entries = [path for path in tmp_path.iterdir() if path.suffix != ".json"]
    assert sorted(path.suffix for path in entries) == [".o", ".o", ".o", ".pch", ".so"]
    for path in entries:
        disk_cache.save(path.stem, path.suffix[1:], b"", {})
    build._runtime.cache_clear()
    build._precompiled.cache_clear()
    x = torch.zeros(64)
    EmulatedHipKernel(code).run([x], {0}, (1, 1, 1))
    assert x.sum() == 64 and all(path.read_bytes() for path in entries)


def test_a_header_of_the_system_that_changes_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CPATH", str(tmp_path))
    for value in ("1", "22"):
        (tmp_path / "string.h").write_text(f"#include_next <string.h>\n#define CHANGED {value}\n")
        build._precompiled.cache_clear()
        EmulatedHipKernel(kernel(f'static_assert(CHANGED == {value}, "");'))  # or clang refuses what it has read
    build._precompiled.cache_clear()


def test_inputs_cannot_be_written() -> None:
    with pytest.raises(EmulationError, match="only read"):
        EmulatedHipKernel(kernel("x[t] = 1.f;")).run([torch.zeros(64)], (), (1, 1, 1))


def test_shared_memory_starts_as_nan() -> None:
    x = torch.zeros(64)
    EmulatedHipKernel(kernel("x[t] = ((float *)memory)[t];", shared=256)).run([x], {0}, (1, 1, 1))
    assert x.isnan().all()


def test_work_groups_that_write_the_same_place() -> None:
    emulated = EmulatedHipKernel(kernel("x[t] += 1.f;"))
    with pytest.raises(EmulationError, match="another work-group"):
        emulated.run([torch.zeros(64)], {0}, (2, 1, 1))


def test_atomic_additions_may_meet() -> None:
    x = torch.zeros(64)
    EmulatedHipKernel(kernel("attn::atomic_add(x + t / 2, 1.f);")).run([x], {0}, (3, 1, 1))
    assert x.tolist() == [6.0] * 32 + [0.0] * 32


def test_reads_of_lanes_that_meet_a_write() -> None:
    """Lanes 1 to 63 read what lane 0 then writes, in no order with them."""
    emulated = EmulatedHipKernel(kernel("float y = x[0];\nif (y == 0.f) x[t == 5 ? 0 : t + 1] = y;"))
    with pytest.raises(EmulationError, match="without a barrier"):
        emulated.run([torch.zeros(65)], {0}, (1, 1, 1))


def test_exchanges_across_lanes() -> None:
    x = torch.zeros(8, 64)
    lines = [
        "__builtin_amdgcn_ds_bpermute((t ^ 7) << 2, t)",
        "__builtin_amdgcn_ds_swizzle(t, 0x401f)",
        "__builtin_amdgcn_readfirstlane(t + 5)",
        "__builtin_amdgcn_mov_dpp(t, 0x111, 15, 15, true)",
        "__builtin_amdgcn_mov_dpp(t, 0x140, 15, 15, true)",
        "__builtin_amdgcn_ds_permute(((t + 1) & 63) << 2, t)",
        "(int)(__builtin_amdgcn_ballot_w64(t & 1) >> 32 & 15)",
        "__builtin_amdgcn_readlane(t, 9)",
    ]
    EmulatedHipKernel(kernel("\n".join(f"x[{64 * i} + t] = {line};" for i, line in enumerate(lines)))).run([x], {0}, (1, 1, 1))
    lane = torch.arange(64)
    assert torch.equal(x[0].long(), lane ^ 7)
    assert torch.equal(x[1].long(), lane ^ 16)
    assert (x[2] == 5).all() and (x[6] == 10).all() and (x[7] == 9).all()
    assert torch.equal(x[3].long(), torch.where(lane % 16 == 0, 0, lane - 1))
    assert torch.equal(x[4].long(), lane // 16 * 16 + 15 - lane % 16)
    assert torch.equal(x[5].long(), (lane - 1) % 64)


def test_loads_through_buffers_are_zero_behind_the_end() -> None:
    x = torch.arange(1.0, 129.0)
    x[1] = 1.1  # 0x3f8ccccd
    body = """auto buffer = __builtin_amdgcn_make_buffer_rsrc(x, 0, 6, 0);
      auto four = __builtin_amdgcn_raw_buffer_load_b128(buffer, t * 4, 0, 0);
      unsigned first = four[0], second = four[1];
      unsigned short low = __builtin_amdgcn_raw_buffer_load_b16(buffer, 4, 0, 0);
      __builtin_amdgcn_wave_barrier();
      x[64 + t] = __builtin_bit_cast(float, first) + __builtin_bit_cast(float, second) + low;"""
    EmulatedHipKernel(kernel(body)).run([x], {0}, (1, 1, 1))
    assert x[64:].tolist() == [1.0 + 0xCCCD, *[float(0xCCCD)] * 63]


def test_facts_that_do_not_match_the_source() -> None:
    code = kernel("x[t] = 1.f;")
    with pytest.raises(CompileError, match="0 bytes of shared memory"):
        EmulatedHipKernel(KernelCode(**{**code.__dict__, "shared_bytes": 64}))
    with pytest.raises(CompileError, match=r"parameters of the kernel f have \[8\] bytes"):
        EmulatedHipKernel(KernelCode(**{**code.__dict__, "parameters": (KernelParameter("size", 0, 0),)}))


def test_a_source_that_does_not_compile() -> None:
    with pytest.raises(CompileError, match="undeclared identifier"):
        EmulatedHipKernel(kernel("x[t] = missing;"))


def test_scalars_keep_their_types() -> None:
    source = f"{_PREAMBLE}ATTN_KERNEL(64, 1) f(double *x, float a, int n, long long s, double b) {{ x[n] = a + b + s; }}\n"
    kinds = [
        KernelParameter("pointer", 0),
        KernelParameter("scalar", 1, -1, "float"),
        KernelParameter("size", 0, 0),
        KernelParameter("stride", 0, 0, "long long"),
    ]
    code = KernelCode("f", "f", source, (*kinds, KernelParameter("scalar", 2, -1, "double")), 64, 0, language="hip", arch="gfx90a")
    x = torch.zeros(5, dtype=torch.float64).as_strided((1,), (3,))
    with pytest.raises(EmulationError, match="lane"):
        EmulatedHipKernel(code).run([x, 0.5, math.pi], {0}, (1, 1, 1))
