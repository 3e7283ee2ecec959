"""Printed kernels for AMD GPUs compile with clang; what the compiler says of them is what docs/amd.md tells. Nothing is run here."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from attn_mlir.backends.amd import translate
from attn_mlir.backends.amd.target import TARGETS
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.dialects import load_all
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry

INPUTS = Path(__file__).parent.parent / "Inputs"
HEADERS = Path(translate.__file__).parent
CLANG = next((path for name in ("clang++-22", "clang++-21", "clang++") if (path := shutil.which(name))), None)
LINKER = any(shutil.which(name) for name in ("ld.lld-22", "ld.lld-21", "ld.lld"))
REASON = "no clang++ with lld is installed (apt install clang-22 lld-22)"

BACKWARD = "attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}"

needs_clang = pytest.mark.skipif(CLANG is None or not LINKER, reason=REASON)


def program(name: str, head: int, value: int | None = None, element: str = "f16") -> str:
    """A program of test/Inputs, whose head dimensions are 64, with others and other elements."""
    text = (INPUTS / f"{name}.mlir").read_text()
    old, new, narrow = (f"tensor<?x?x?x{size}>" for size in ("64xf32", f"{head}x{element}", f"{value or head}x{element}"))
    text = text.replace(f"({old}, {old}, {old}) -> ({old}", f"({new}, {new}, {narrow}) -> ({narrow}")
    text = (
        text.replace(f"%v: {old}", f"%v: {narrow}")
        .replace(f"-> ({old}", f"-> ({narrow}")
        .replace(f"%o, %lse : {old}", f"%o, %lse : {narrow}")
    )
    return text.replace(old, new)


def codes(text: str, arch: str = "gfx90a", prepare: str = "") -> list[KernelCode]:
    """The kernels of a program, after a pipeline."""
    with ir.Context() as context:
        load_all(context)
        module = ir.Module.parse(text)
        Pipeline.parse(prepare, registry()).run(module)
        for function in find_all(module.operation, "func.func"):
            function.attributes[attributes.CHOICES] = attributes.write({"arch": arch})
        return translate.codes_of(module)


def facts(code: KernelCode, folder: Path) -> dict[str, int]:
    """Compiles a kernel; what clang says of its resources."""
    source, made = folder / f"{code.name}.hip", folder / f"{code.name}.hsaco"
    source.write_text(code.source)
    options = ["-x", "hip", f"--offload-arch={code.arch}", "--offload-device-only", "--no-gpu-bundle-output", "-mcode-object-version=5",
               "-nogpuinc", "-nogpulib", "-O3", "-std=c++17", "-Rpass-analysis=kernel-resource-usage", f"-I{HEADERS}"]  # fmt: skip
    done = subprocess.run([str(CLANG), *options, *code.flags, str(source), "-o", str(made)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert made.read_bytes()[:4] == b"\x7fELF"
    return {name: int(number) for name, number in re.findall(r"remark:\s+([^:\[]+?)(?: \[[^]]*])?: (\d+)", done.stderr)}


@needs_clang
@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize("name", ["plain-softmax", "causal-softmax"])
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_forward_has_two_waves_and_no_spills(name: str, head: int, element: str, tmp_path: Path) -> None:
    (code,) = codes(program(name, head, head, element))
    found = facts(code, tmp_path)
    assert found["VGPRs Spill"] == found["ScratchSize"] == 0
    assert found["Occupancy"] == 2
    assert found["LDS Size"] == code.shared_bytes == 32768


@needs_clang
@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize(("head", "value"), [(32, 32), (96, 96), (192, 128), (256, 256), (40, 72), (36, 20), (7, 33)])
def test_head_dimensions(arch: str, head: int, value: int, tmp_path: Path) -> None:
    (code,) = codes(program("plain-softmax", head, value), arch)
    found = facts(code, tmp_path)
    assert code.arch == arch
    assert found["ScratchSize"] == 0
    assert found["LDS Size"] <= 65536


@needs_clang
@pytest.mark.parametrize(("head", "spills"), [(64, False), (128, False), (256, True)])
@pytest.mark.parametrize(("name", "arch", "element"), [("plain-softmax", "gfx90a", "f16"), ("causal-softmax", "gfx942", "bf16")])
def test_backward(name: str, arch: str, element: str, head: int, spills: bool, tmp_path: Path) -> None:
    made = codes(program(name, head, head, element), arch, BACKWARD)
    pairs = [facts(code, tmp_path) for code in made if code.name.endswith("pairs")]
    assert len(pairs) == 1
    assert len(made) > 1
    assert pairs[0]["LDS Size"] <= 65536
    assert spills or pairs[0]["VGPRs Spill"] == pairs[0]["ScratchSize"] == 0
    for code in made:
        assert facts(code, tmp_path)["LDS Size"] == code.shared_bytes


@needs_clang
@pytest.mark.parametrize(
    "name", ["alibi-signed", "bias", "document-causal", "entropy", "layer-norm", "query-key-value-mods", "retention", "softcap"]
)
def test_row_functions_and_mods(name: str, tmp_path: Path) -> None:
    text = (INPUTS / f"{name}.mlir").read_text()
    (code,) = codes(re.sub(r"tensor<\?x\?x\?x(\d+)xf32>", r"tensor<?x?x?x\1xf16>", text))
    found = facts(code, tmp_path)
    assert found["ScratchSize"] == found["VGPRs Spill"] == 0
