"""TileLang programs: every kernel is printed; samples of every feature are lowered by TileLang and compiled by nvcc."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path

import pytest

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelParameter
from attn_mlir.backends.nvidia import codegen
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.backends.nvidia.tilelang import lowering, planning, program_of
from attn_mlir.backends.nvidia.tilelang.program import PrintedKernel, print_program
from attn_mlir.dialects import load_all
from attn_mlir.errors import CompileError, UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry
from machine_code import compiled, disassembled
from scalar_kernels import every_op

INPUTS = Path(__file__).parents[1] / "Inputs"
KERNEL = "attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,nvidia-choose-blocks,attn-tile{whole=true},canonicalize,cse"
needs_tools = pytest.mark.skipif(
    not lowering.available() or shutil.which("nvcc") is None, reason="needs TileLang (pip install tilelang) and nvcc on the PATH"
)


def prepare(function: str, wrt: str) -> str:
    """The pipeline to the tile dialect: of the attention itself, or of a derivative."""
    if function == "attention":
        return f"attn-simplify,{KERNEL}"
    derive = f"attn-recover-rows,attn-differentiate{{functions={function} wrt={wrt} only=true}}"
    return f"attn-simplify,{derive},attn-simplify,attn-outline{{keep-hosts=false}},{KERNEL}"


def half(text: str, element: str = "f16") -> str:
    """A program with q, k, v and o in 16 bits."""
    return re.sub(r"tensor<\?x\?x\?x(\d+)xf32>", rf"tensor<?x?x?x\1x{element}>", text)


@contextmanager
def kernels(name: str, function: str, wrt: str = "q+k+v", **choices: int | str) -> Iterator[list[ir.Operation]]:
    """The scheduled kernels of a program in test/Inputs."""
    with ir.Context() as context, ir.Location.unknown():
        load_all(context)
        module = ir.Module.parse(half((INPUTS / f"{name}.mlir").read_text()))
        Pipeline.parse(prepare(function, wrt), registry()).run(module)
        yield [schedule(op, **choices) for op in find_all(module.operation, "func.func") if "tile.kernel" in op.attributes]


def schedule(kernel: ir.Operation, **choices: int | str) -> ir.Operation:
    """The kernel with a schedule for TileLang."""
    kernel.attributes[attributes.CHOICES] = attributes.write({"emitter": "tilelang", **choices})
    kernel.attributes[attributes.SCHEDULE] = attributes.write(codegen.plan(kernel))
    return kernel


NAMES = sorted(path.stem for path in INPUTS.glob("*.mlir") if not path.stem.startswith(("packed", "paged")))
"""No GPU has kernels for packed sequences."""


@pytest.mark.parametrize("function", ["attention", "bwd"])
@pytest.mark.parametrize("name", NAMES)
def test_every_program_prints(name: str, function: str) -> None:
    if function == "bwd" and name.startswith("online"):
        pytest.skip("what a user wrote as an online function is not differentiated here")
    with kernels(name, function) as made:
        for kernel in made:
            text = program_of(kernel).text
            compile(text, name, "exec")
            assert text.count("@T.prim_func") == 1
            sizes = [int(size) for shape in re.findall(r"T\.alloc_\w+\(\(([\d, -]+)\)", text) for size in shape.split(",") if size.strip()]
            assert all(0 < size <= 512 for size in sizes), sizes


def multiplies(kernel: ir.Operation, tmp_path: Path) -> str:
    """Compiles a kernel; which matrix instructions it has, "HGMMA", "HMMA" or none. Warnings that they are serialised fail."""
    code = codegen.emit(kernel)
    binary = compiled(code)
    called = "HGMMA" if "tl::wgmma_" in code.source else "HMMA" if "tl::mma_sync" in code.source else ""
    path = tmp_path / "kernel.cubin"
    path.write_bytes(binary.code)
    machine = disassembled(path)
    assert called == ("HGMMA" if "HGMMA" in machine else "HMMA" if "HMMA" in machine else "")
    return called


# Masks resolved to bounds and to classes of blocks, several passes, mods of q, k and v, captured tables and numbers.
@needs_tools
@pytest.mark.parametrize("name", ["document-causal", "query-key-value-mods", "std-temperature"])
def test_forward_compiles(name: str, tmp_path: Path) -> None:
    with kernels(name, "attention") as (kernel,):
        assert multiplies(kernel, tmp_path) == "HGMMA"


# Sums, scattered values of rows; without products: sums over columns, elements.
@needs_tools
def test_backward_compiles(tmp_path: Path) -> None:
    with kernels("alibi-causal-softmax", "bwd") as made:
        assert len(made) == 3
        assert [multiplies(kernel, tmp_path) for kernel in made] == ["", "", "HGMMA"]


@needs_tools
@pytest.mark.parametrize(("name", "function"), [("causal-softmax", "attention"), ("sink", "bwd")])
def test_ampere_compiles(name: str, function: str, tmp_path: Path) -> None:
    with kernels(name, function, arch="sm_80") as made:
        assert multiplies(made[-1], tmp_path) == "HMMA"


@needs_tools
def test_every_scalar_op_compiles(tmp_path: Path) -> None:
    with ir.Context() as context, ir.Location.unknown():
        load_all(context)
        module = ir.Module.parse(every_op())
        (function,) = find_all(module.operation, "func.func")
        kernel = schedule(function)
        assert "-use_fast_math" not in codegen.emit(kernel).flags  # tanh and pow need better
        assert multiplies(kernel, tmp_path) == ""


@needs_tools
def test_a_program_runs_alone(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    with kernels("causal-softmax", "bwd") as made:
        path.write_text(program_of(made[0]).text)
    printed = subprocess.run([sys.executable, str(path), "sm_80"], capture_output=True, text=True, check=True)
    assert "__global__" in printed.stdout


@pytest.mark.parametrize("deterministic", [0, 1])
def test_deterministic_scatters_add_in_turn(deterministic: int) -> None:
    with kernels("derivatives/alibi-causal-softmax", "bwd", wrt="q+arg3", deterministic=deterministic) as made:
        text = program_of(made[-1]).text
    assert ("if T.get_thread_binding() == 0:" in text) == bool(deterministic)
    assert "T.atomic_add" in text  # dq, in slots of programs


def test_stages_are_one_where_shared_memory_is_short() -> None:
    target = codegen.TARGETS["sm_90a"]
    with kernels("plain-softmax", "attention") as (kernel,):
        wide = planning.plan(kernel, target, {})
        assert wide is not None
        assert wide["stages"] == 2
        threads = int(wide["threads"])
        small = NvidiaTarget("sm_80", 1, print_program(kernel, threads, 1).shared_bytes + 2048)
        assert planning.plan(kernel, small, {}) == {**wide, "stages": 1}
        assert planning.plan(kernel, NvidiaTarget("sm_80", 1, 1024), {}) is None


def test_matrices_of_32_bits_are_left_to_others() -> None:
    with ir.Context() as context, ir.Location.unknown():
        load_all(context)
        module = ir.Module.parse((INPUTS / "plain-softmax.mlir").read_text())
        Pipeline.parse(prepare("attention", "q"), registry()).run(module)
        (kernel,) = find_all(module.operation, "func.func")
        assert planning.plan(kernel, codegen.TARGETS["sm_90a"], {}) is None


def test_parameters_follow_the_cuda_function() -> None:
    parameters = {
        "q": KernelParameter("pointer", 0, align=8),
        "q_size2": KernelParameter("size", 0, 2),
        "scale": KernelParameter("scalar", 1, type="float"),
    }
    source = "__global__ void __launch_bounds__(256, 1) f_kernel(const half_t* __restrict__ q, int q_size2, float scale) {"
    made = PrintedKernel("f", "", parameters, 256, 0, False)
    assert lowering.parameters_of(lowering.Lowered(source, "f_kernel", 0), made) == tuple(parameters.values())
    with pytest.raises(CompileError, match="does not declare"):
        lowering.parameters_of(lowering.Lowered(source.replace("scale", "other"), "f_kernel", 0), made)
    with pytest.raises(CompileError, match="holds no function g"):
        lowering.parameters_of(lowering.Lowered(source, "g", 0), made)


def test_programs_lowered_ahead_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are more of them than threads: one that waits for itself would keep the process from ending."""
    monkeypatch.setattr(lowering, "available", lambda: True)
    monkeypatch.setattr(lowering, "version", lambda: "none")
    monkeypatch.setattr(lowering.disk_cache, "load", lambda *_: None)
    monkeypatch.setattr(lowering.disk_cache, "save", lambda *_: None)
    monkeypatch.setattr(lowering, "_run", lambda program, arch: time.sleep(0.05) or lowering.Lowered(program, "f", 0))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    programs = [(name, "sm_90a") for name in ("first", "second", "third")]
    lowering.lower_ahead(programs)
    started = list(lowering._AHEAD.values())
    assert not wait(started, timeout=10).not_done
    assert [lowering.lower(*program).source for program in programs] == ["first", "second", "third"]


def test_a_failure_of_tilelang_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_MLIR_CACHE", "off")
    monkeypatch.setattr(lowering, "available", lambda: False)
    with pytest.raises(UnsupportedError, match="not installed"):
        lowering.lower("", "sm_90a")
    monkeypatch.setattr(lowering, "available", lambda: True)
    monkeypatch.setattr(lowering, "version", lambda: "none")
    with pytest.raises(CompileError, match="no such thing"):
        lowering.lower("raise ValueError('no such thing')", "sm_90a")


_LOWERED = """
import os, types
def lower(arch):
    print("what TileLang prints")
    function = types.SimpleNamespace(attrs={"global_symbol": "f"})
    return types.SimpleNamespace(device_mod=types.SimpleNamespace(functions={0: function}), kernel_source=f"{arch} {os.getpid()}")
"""


def test_a_process_lowers_program_after_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after one that fails; where one ends the process, that is told, and another process takes the next."""
    monkeypatch.setattr(lowering.processes, "_WAITING", [])
    first = lowering._run(_LOWERED, "sm_90a")
    assert first.source.startswith("sm_90a ") and (first.entry, first.shared_bytes) == ("f", 0)
    with pytest.raises(CompileError, match="no such thing"):
        lowering._run("raise ValueError('no such thing')", "sm_90a")
    assert lowering._run(_LOWERED, "sm_90a") == first
    with pytest.raises(CompileError, match="its last words"):
        lowering._run("import os, sys; sys.stderr.write('its last words'); sys.stderr.flush(); os._exit(1)", "sm_90a")
    assert lowering._run(_LOWERED, "sm_90a") != first
    monkeypatch.setenv("TILELANG_PRINT", "1")  # a setting, which the process has not
    second = lowering._run(_LOWERED, "sm_80").source
    assert second.startswith("sm_80 ")
    (process,) = lowering.processes._WAITING
    assert second.endswith(f" {process._process.pid}")


def test_processes_end_without_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering.processes, "_WAITING", [])
    monkeypatch.setattr(lowering.processes, "_IDLE", 0.0)
    first = lowering.processes.Process()
    assert first._process.wait(timeout=60) == 0
    lowering.processes._WAITING.append(first)
    monkeypatch.setattr(lowering.processes, "_IDLE", 60.0)
    assert lowering._run(_LOWERED, "sm_90a").entry == "f"  # by another one


_BEGUN = """
import time
from attn_mlir.backends.nvidia import background
from attn_mlir.backends.nvidia.tilelang import lowering
lowering.available, lowering.version = lambda: True, lambda: "none"
slow = "import time; time.sleep(100) # "
lowering.lower_ahead([(slow + str(number), "sm_90a") for number in range(4)])
for number in (3, 4):  # one that was begun, and another
    background.in_background(lambda number=number: lowering.lower(slow + str(number), "sm_90a"))
time.sleep(0.5)
"""


def test_a_program_ends_without_what_nobody_waits_for() -> None:
    """Python waits for all threads at its end: those that wait for TileLang give up then."""
    environment = {**os.environ, "ATTN_MLIR_CACHE": "off"}
    subprocess.run([sys.executable, "-c", _BEGUN], env=environment, check=True, timeout=60)


def test_programs_that_take_too_long_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering.processes, "_WAITING", [])
    monkeypatch.setattr(lowering, "_LIMIT", 0.2)
    with pytest.raises(CompileError, match="TileLang took longer than 0 s"):
        lowering._run("import time; time.sleep(100)", "sm_90a")
    assert not lowering.processes._WAITING
