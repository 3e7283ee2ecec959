"""The CPU backend around its kernels: cache, threads, errors of the driver, and what kernels tell about themselves."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attn_mlir import driver
from attn_mlir.backends import disk_cache
from attn_mlir.backends.cpu import driver as cpu
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError

INPUTS = Path(__file__).parent.parent / "Inputs"
SOFTMAX = (INPUTS / "causal-softmax.mlir").read_text()


def compiled(source):
    """A kernel that is not kept in memory."""
    return cpu.CpuKernel(source, *cpu._compile(source))


def run(kernel, length=40):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, length, 64)
    return kernel.run(q, k, v, [])[0]


def test_kernels_are_cached_in_memory():
    assert driver.compile(SOFTMAX, "cpu") is driver.compile(SOFTMAX, "cpu")


def test_disk_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path))
    expected = run(compiled(SOFTMAX))
    files = sorted(tmp_path.iterdir())
    assert [file.suffix for file in files] == [".json", ".mlirbc"]

    def lower(source, first, blocks):
        raise RuntimeError("compiled again")

    monkeypatch.setattr(cpu, "_lower", lower)
    assert torch.equal(run(compiled(SOFTMAX)), expected)
    # Another program, another entry.
    with pytest.raises(RuntimeError, match="compiled again"):
        compiled(SOFTMAX.replace("0.125", "0.25"))


@pytest.mark.parametrize("damage", [b"", b"not bytecode", None])
def test_damaged_disk_cache_is_replaced(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path))
    expected = run(compiled(SOFTMAX))
    (bytecode,) = tmp_path.glob("*.mlirbc")
    whole = bytecode.read_bytes()
    bytecode.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    assert torch.equal(run(compiled(SOFTMAX)), expected)
    assert bytecode.read_bytes() == whole


def test_unwritable_disk_cache_is_ignored(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path / "file" / "below"))
    assert run(compiled(SOFTMAX)).isfinite().all()


def test_cache_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("ATTN_MLIR_CACHE", "off")
    assert disk_cache.directory() is None


def test_devices_without_kernels():
    for device, words in (("hip", "take 16-bit inputs"), ("abacus", "no backend serves it")):
        with pytest.raises(UnsupportedError, match=words):
            driver.compile(SOFTMAX, device)


def test_rejected_programs_are_located():
    with pytest.raises(CompileError, match="expected"):
        driver.compile("func.func @attention(", "cpu")
    with pytest.raises(CompileError, match=r"attn\.row"):
        driver.compile(SOFTMAX.replace("attn.row", "attn.column"), "cpu")


def test_wrong_head_dimension_is_refused():
    q, k, v = torch.randn(3, 1, 2, 5, 32)
    with pytest.raises(ArgumentError, match=r"head dimensions \(64, 64\)"):
        driver.compile(SOFTMAX, "cpu").run(q, k, v, [])


def test_stages():
    stages = driver.compile(SOFTMAX, "cpu").stages()
    assert next(iter(stages)) == "traced"
    assert '"attn.online"' in stages["attn-online-rewrite"]
    assert '"tile.dot"' in stages["tile-schedule"]
    assert "llvm.func @attention" in list(stages.values())[-1]


def test_threads_without_openmp(monkeypatch):
    from attn_mlir.backends.cpu import jit

    expected = run(driver.compile(SOFTMAX, "cpu"), 300)
    monkeypatch.setattr(jit, "openmp", lambda: None)
    assert torch.equal(run(driver.compile(SOFTMAX, "cpu"), 300), expected)


def test_concurrent_calls():
    """Several Python threads may run one kernel at once."""
    from concurrent.futures import ThreadPoolExecutor

    kernel = driver.compile(SOFTMAX, "cpu")
    expected = run(kernel, 200)
    with ThreadPoolExecutor(4) as pool:
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 1, 2, 200, 64)
        results = list(pool.map(lambda _: kernel.run(q, k, v, [])[0], range(16)))
    assert all(torch.equal(result, expected) for result in results)


def test_core_does_not_import_torch():
    code = "import sys, attn_mlir.registry, attn_mlir.passes.tile_rows, attn_mlir.tools.attn_opt; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("vector_bytes", "registers", "features"), [(16, 16, ()), (32, 16, ("avx2", "fma", "f16c")), (64, 32, ("avx512f",))]
)
def test_code_for_other_machines(monkeypatch, vector_bytes, registers, features):
    """What is generated without AVX-512, or without its bf16 products, computes the same (LLVM still targets this machine)."""
    from attn_mlir.backends.cpu import target
    from attn_mlir.backends.cpu.passes import expand_casts, expand_math, lower_tiles, schedule

    if not target.machine().features.issuperset(features):
        pytest.skip(f"this machine lacks one of {', '.join(features)}")
    other = target.CpuTarget(vector_bytes, registers, frozenset(features), 1)
    for module in (expand_casts, expand_math, lower_tiles, schedule, cpu):
        monkeypatch.setattr(module, "host", lambda: other)
    monkeypatch.setenv("ATTN_MLIR_CACHE", "off")
    torch.manual_seed(0)
    for element, dtype, tolerance in (("f32", torch.float32, 2e-6), ("bf16", torch.bfloat16, 2e-2)):
        kernel = compiled(SOFTMAX.replace("x64xf32", f"x64x{element}"))
        q, k, v = torch.randn(3, 1, 2, 77, 64).to(dtype)
        o, lse = kernel.run(q, k, v, [])
        scores = q.double() @ k.double().transpose(-1, -2) * 0.125
        scores = scores.masked_fill(torch.ones(77, 77).triu(1).bool(), float("-inf"))
        assert (o.double() - scores.softmax(-1) @ v.double()).abs().max() < tolerance
        assert (lse.double() - scores.logsumexp(-1)).abs().max() < 2e-5


def test_few_queries_have_smaller_blocks():
    """A kernel of their own, and a single one another, compiled when there are such queries; the values are those of more."""
    kernel = compiled(SOFTMAX)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 40, 64)
    whole = kernel.run(q, k, v, [])[0]
    assert not kernel._small
    for count in (16, 1):
        part = kernel.run(q[:, :, :count], k[:, :, :count], v[:, :, :count], [])[0]
        assert (part - whole[:, :, :count]).abs().max() < 1e-6
    assert [signature.block_q for _, signature in kernel._small.values()] == [16, 1]
    assert kernel._signature.block_q > 16


@pytest.mark.parametrize("rows", [1, 5, 17, 48])
def test_any_number_of_rows_a_block(monkeypatch, rows):
    """Columns of tiles are then not aligned to vectors."""
    monkeypatch.setattr(cpu.pipeline, "TILES", cpu.pipeline.TILES.replace("block-q=32", f"block-q={rows}"))
    monkeypatch.setenv("ATTN_MLIR_CACHE", "off")
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 77, 64)
    o, _ = compiled(SOFTMAX).run(q, k, v, [])
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    assert (o - expected).abs().max() < 2e-6
