"""Printed kernels for AMD GPUs compile with clang; what the compiler says of them is what docs/amd.md tells. Nothing is run here."""

import re
from pathlib import Path

import pytest

from amd_tools import needs_clang
from attn_mlir.backends.amd import translate
from attn_mlir.backends.amd.compile import compile_all
from attn_mlir.backends.amd.target import TARGETS
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry
from contexts import loaded_context

INPUTS = Path(__file__).parent.parent / "Inputs"
FORWARD = "attn-differentiate{functions=fwd wrt=q+k+v only=true residual=true}"
BACKWARD = "attn-differentiate{functions=bwd wrt=q+k+v only=true},amd-split-sums,attn-simplify,attn-outline{keep-hosts=false}"


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
    with loaded_context():
        module = ir.Module.parse(text)
        Pipeline.parse(prepare, registry()).run(module)
        for function in find_all(module.operation, "func.func"):
            function.attributes[attributes.CHOICES] = attributes.write({"arch": arch})
        return translate.codes_of(module)


@needs_clang
@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize("name", ["plain-softmax", "causal-softmax"])
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_forward_has_two_waves_and_no_spills(name: str, head: int, element: str) -> None:
    (code,) = codes(program(name, head, head, element))
    (binary,) = compile_all([code])
    assert binary.code[:4] == b"\x7fELF"
    assert binary.spills == binary.scratch == 0
    assert binary.waves == 2
    assert binary.shared == code.shared_bytes == 32768


@needs_clang
@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize("name", ["plain-softmax", "causal-softmax"])
def test_forward_for_gradients_has_no_spills(name: str, head: int) -> None:
    """With the saved row values, and what rounding takes from o."""
    (binary,) = compile_all(codes(program(name, head), prepare=FORWARD))
    assert binary.spills == binary.scratch == 0
    assert binary.waves == 2


@needs_clang
@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize(
    ("head", "value"), [(32, 32), (96, 96), (192, 128), (256, 256), (40, 72), (36, 20), (7, 33), (576, 512), (1024, 1024)]
)
def test_head_dimensions(arch: str, head: int, value: int) -> None:
    (code,) = codes(program("plain-softmax", head, value), arch)
    (binary,) = compile_all([code])
    assert code.arch == arch
    assert binary.scratch == 0
    assert binary.shared == code.shared_bytes <= 65536


@needs_clang
@pytest.mark.parametrize(("head", "sums"), [(64, 1), (128, 1), (256, 2)])
@pytest.mark.parametrize(("name", "arch", "element"), [("plain-softmax", "gfx90a", "f16"), ("causal-softmax", "gfx942", "bf16")])
def test_backward(name: str, arch: str, element: str, head: int, sums: int) -> None:
    made = codes(program(name, head, head, element), arch, BACKWARD)
    names = ["attention_bwd_0_row_dot", "attention_bwd_1_elements", *(f"attention_bwd_{2 + number}_pairs" for number in range(sums))]
    assert [code.name for code in made] == names
    binaries = compile_all(made)
    assert all(binary.shared == code.shared_bytes <= 65536 for code, binary in zip(made, binaries, strict=True))
    assert [binary.scratch for binary in binaries] == [0] * len(names)


@needs_clang
@pytest.mark.parametrize(("head", "element"), [(192, "f16"), (256, "bf16")])
def test_backward_of_wide_heads_needs_no_scratch(head: int, element: str) -> None:
    binaries = compile_all(codes(program("plain-softmax", head, head, element), prepare=BACKWARD))
    assert [binary.scratch for binary in binaries] == [0] * len(binaries)


@needs_clang
@pytest.mark.parametrize(
    "name", ["alibi-signed", "bias", "document-causal", "entropy", "layer-norm", "query-key-value-mods", "retention", "softcap"]
)
def test_row_functions_and_mods(name: str) -> None:
    text = (INPUTS / f"{name}.mlir").read_text()
    (binary,) = compile_all(codes(re.sub(r"tensor<\?x\?x\?x(\d+)xf32>", r"tensor<?x?x?x\1xf16>", text)))
    assert binary.spills == binary.scratch == 0


@needs_clang
def test_scalar_functions_of_the_header() -> None:
    """Every function that scalar code may call has a definition for the GPU."""
    ops = ("exp expm1 log log2 log10 log1p sqrt rsqrt cbrt absf sinh cosh asin acos atan erf erfc floor ceil trunc roundeven round "
           "tanh sin cos tan exp2").split()  # fmt: skip
    chain = "\n".join(f"      %x{n + 1} = math.{op} %x{n} : f32" for n, op in enumerate(ops))
    score = f'"attn.score"() ({{\n    ^bb0(%x0: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):\n{chain}'
    score += f'\n      "attn.yield"(%x{len(ops)}) : (f32) -> ()\n    }}) : () -> ()\n    "attn.row"'
    text = re.sub(r'"attn.score"\(\) .*?"attn.row"', lambda _: score, program("plain-softmax", 32), flags=re.DOTALL)
    assert "math.erfc" in text
    (binary,) = compile_all(codes(text))
    assert binary.code[:4] == b"\x7fELF"
