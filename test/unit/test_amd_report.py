"""The report of compiled kernels for AMD GPUs, and the model of a compute unit behind its estimates."""

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from amd_tools import needs_objdump
from attn_mlir.backends.amd.compile import HipBinary
from attn_mlir.backends.amd.isa.disassembly import parse
from attn_mlir.backends.amd.model import ASSUMPTIONS, estimate, family, issue_clocks
from attn_mlir.backends.amd.report import groups_of, hot_loop
from attn_mlir.backends.gpu.kernel import KernelCode

PROGRAM = Path(__file__).parent.parent / "Inputs" / "softmax-f16.mlir"
MATRIX, VECTOR, SLOW = "v_mfma_f32_32x32x8f16 v[0:15], v[16:17], v[18:19], v[0:15]", "v_add_f32_e32 v0, v1, v2", "v_exp_f32_e32 v0, v1"


def translate(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "attn_mlir.tools.attn_translate", str(PROGRAM), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@needs_objdump
def test_the_report_of_a_forward_pass() -> None:
    made = translate("--to", "hip", "--report")
    assert made.returncode == 0, made.stderr
    lines = {line.split()[0]: line for line in made.stdout.splitlines() if line.startswith("  ") and not line.startswith("  -")}
    assert made.stdout.startswith("kernel attention (256 threads, gfx90a)")
    assert "VGPR" in lines["registers"] and "no spills" in lines["registers"]
    assert "16384 of 65536 bytes" in made.stdout and "MFMA 32" in lines["hot"] and "narrow LDS reads: 0" in lines["hot"]
    assert "ds_read_b128" in made.stdout and "[model]" in lines["time"]
    assert "no kernel ran on an AMD GPU" in made.stdout and all(assumption in made.stdout for assumption in ASSUMPTIONS)


def test_formats_without_a_report() -> None:
    made = translate("--to", "amd-kernel", "--report")
    assert made.returncode == 2 and "--to amd-kernel has no report" in made.stderr


def test_families() -> None:
    names = ("v_mfma_f32_16x16x16f16", "v_exp_f32", "v_pk_fma_f32", "v_add_u32", "ds_bpermute_b32", "ds_read_b128", "ds_write_b64",
             "buffer_load_dwordx4", "s_waitcnt", "s_barrier", "s_add_u32")  # fmt: skip
    assert [family(name) for name in names] == [
        "MFMA", "transcendental", "packed f32", "VALU", "LDS exchange", "LDS read", "LDS write", "memory", "wait", "barrier", "scalar",
    ]  # fmt: skip
    assert [issue_clocks(name) for name in names[:4]] == [32, 16, 4, 4]


def run(*texts: str, waves: int = 4, groups: int = 1, **conflicts: float) -> tuple[float, float, int]:
    made = estimate([parse(text) for text in texts], waves, groups, conflicts)
    return made.matrix, made.vector, made.clocks


def test_matrix_products_alone_fill_their_unit() -> None:
    matrix, vector, clocks = run(*[MATRIX] * 50)
    assert matrix == pytest.approx(1, abs=0.03) and vector == 0 and clocks == pytest.approx(50 * 64, rel=0.03)


def test_waves_of_a_simd_overlap() -> None:
    """A wave alone leaves the matrix unit idle while it waits for memory; a second one fills the gap."""
    texts = ["global_load_dwordx4 v[0:3], v[4:5], off", "s_waitcnt vmcnt(0)", *[MATRIX] * 8] * 10
    alone, together = run(*texts), run(*texts, groups=2)
    assert alone[0] < 0.5 and together[0] > 1.5 * alone[0] and together[2] < 1.3 * alone[2]


def test_slow_functions_and_waits() -> None:
    assert run(*[SLOW] * 40)[2] == pytest.approx(4 * run(*[VECTOR] * 40)[2], rel=0.1)
    waiting = run("global_load_dwordx4 v[0:3], v[4:5], off", "s_waitcnt vmcnt(0)", VECTOR)
    assert waiting[2] > 700


def test_conflicts_cost_time() -> None:
    texts = [*["ds_read_b128 v[0:3], v4"] * 30, "s_waitcnt lgkmcnt(0)", VECTOR]
    assert run(*texts, ds_read_b128=2.0)[2] > 1.7 * run(*texts)[2]


def test_barriers_wait_for_the_slowest_wave() -> None:
    made = run(VECTOR, "s_barrier", VECTOR, "s_barrier", VECTOR, waves=8)
    assert made[2] < 200


def test_the_hot_loop_has_the_products() -> None:
    lines = [(0, VECTOR), (4, "s_cbranch_scc1 65534"), (8, MATRIX), (12, VECTOR), (16, "s_cbranch_scc1 65533"), (20, "s_endpgm")]
    program = [parse(text, address) for address, text in lines]
    assert [i.address for i in hot_loop(program, Counter({"s_cbranch_scc1": 9}))] == [8, 12, 16]
    assert hot_loop(program, Counter()) == []


@pytest.mark.parametrize(("waves", "shared", "groups"), [(2, 32768, 2), (2, 40000, 1), (1, 0, 1), (8, 0, 8)])
def test_blocks_of_a_compute_unit(waves: int, shared: int, groups: int) -> None:
    code = KernelCode("f", "f", "", (), 256, shared, language="hip", arch="gfx90a")
    assert groups_of(code, HipBinary(b"", waves=waves, shared=shared)) == groups


@needs_objdump
def test_tilelang_under_the_same_report() -> None:
    """Its HIP runs in the interpreter and gives right numbers, so that its figures are those of an attention."""
    if importlib.util.find_spec("tilelang") is None:
        pytest.skip("TileLang is not installed")
    script = Path(__file__).parents[2] / "benchmarks" / "amd_tilelang.py"
    made = subprocess.run([sys.executable, str(script), "64:64:64:256:256"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    lines = {line.split()[0]: line for line in made.stdout.splitlines() if line.startswith("  ")}
    assert float(lines["error"].split()[1]) < 1e-3
    assert "no spills" in lines["registers"] and "MFMA 32" in lines["hot"]
