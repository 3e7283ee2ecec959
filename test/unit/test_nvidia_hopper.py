"""Kernels over rows for Hopper: what the emitter plans, prints and refuses; compiled with nvcc where there is one."""

import re
from pathlib import Path

import pytest

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.structure import body, chains, partial_sums
from attn_mlir.backends.nvidia import codegen, driver, pipeline
from attn_mlir.backends.nvidia.hopper.plan import check_registers
from attn_mlir.backends.nvidia.target import HOPPER
from attn_mlir.diagnostics import DiagnosticError
from attn_mlir.dialects import load_all
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry
from machine_code import compiled, disassembled

INPUTS = Path(__file__).parents[1] / "Inputs"


def program(name: str, columns: int = 64, element: str = "f16") -> str:
    """One of the test programs with queries, keys and values of this type and width."""
    text = re.sub(r"tensor<\?x\?x\?x(\d+)xf(32|16)>", rf"tensor<?x?x?x\1x{element}>", (INPUTS / f"{name}.mlir").read_text())
    return text.replace("x64x", f"x{columns}x")


def emit(text: str, **choices: int | str) -> KernelCode:
    """The kernel of a program, by the Hopper emitter."""
    context = ir.Context()
    load_all(context)
    with context, ir.Location.unknown():
        module = ir.Module.parse(text)
        for function in find_all(module.operation, "func.func"):
            function.attributes[attributes.CHOICES] = attributes.write({"emitter": "hopper", **choices})
        Pipeline.parse(pipeline.KERNEL, registry()).run(module)
        (kernel,) = [op for op in find_all(module.operation, "func.func") if attributes.SCHEDULE in op.attributes]
        return codegen.emit(kernel)


@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.parametrize("name", ["plain-softmax", "causal-softmax"])
def test_bar_shapes_spill_nothing(name: str, columns: int, element: str, tmp_path: Path) -> None:
    binary = compiled(emit(program(name, columns, element)))
    assert binary.spills == 0
    path = tmp_path / "kernel.cubin"
    path.write_bytes(binary.code)
    assert disassembled(path).count("HGMMA") >= 4 * (columns // 16)


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_long_sequences_without_a_mask_spill_nothing(element: str) -> None:
    code = emit(program("plain-softmax", 128, element), length=8192)
    assert "wgmma_m64n192k16" in code.source
    assert compiled(code).spills == 0


@pytest.mark.parametrize("columns", [64, 128])
def test_tangents_spill_nothing(columns: int) -> None:
    made = driver.compile_derivative(program("causal-softmax", columns), "jvp", ("q", "k", "v"))
    assert [compiled(unit.code).spills for unit in made.units.values()] == [0]


@pytest.mark.parametrize("name", ["plain-softmax", "causal-softmax"])
def test_values_of_any_width_are_divided_in_all_their_columns(name: str) -> None:
    source = emit(program(name, 36)).source  # 40 columns in registers, of which 36 exist
    divided = re.findall(r"c < (\d+); \+\+c\) \{(?:(?!c < ).)*?\bo\w*\[4 \* c \+ 2 \* h \+ e\] \* ", source, re.DOTALL)
    assert divided and set(divided) == {"5"}


@pytest.mark.parametrize(
    "name",
    [
        "alibi-causal-softmax",
        "document-causal",
        "layer-norm",
        "query-key-value-mods",
        "sigmoid-bias",
        "sliding-window",
    ],
)
def test_features_compile(name: str) -> None:
    compiled(emit(program(name)))


@pytest.mark.parametrize("columns", [32, 80, 96, 192, 256])
def test_head_dimensions_compile(columns: int) -> None:
    code = emit(program("causal-softmax", columns))
    assert code.shared_bytes <= HOPPER.shared_bytes
    compiled(code)


@pytest.mark.parametrize(
    ("flow", "order"), [("plain", "tiles"), ("each", "static"), ("each", "dynamic"), ("flat", "tiles"), ("flat", "static")]
)
def test_schedules_compile(flow: str, order: str) -> None:
    code = emit(program("causal-softmax"), flow=flow, order=order)
    assert code.grid == ("tiles" if order == "tiles" else "persistent")
    assert any(parameter.kind == "counter" for parameter in code.parameters) == (order == "dynamic")
    compiled(code)


def test_too_many_registers_are_refused() -> None:
    check_registers(2, 232, 40, HOPPER)
    with pytest.raises(UnsupportedError, match="would hang"):
        check_registers(2, 240, 40, HOPPER)
    with pytest.raises(UnsupportedError, match="multiples of 8"):
        check_registers(1, 100, 24, HOPPER)
    with pytest.raises(DiagnosticError, match="would hang"):
        emit(program("causal-softmax"), consumer_registers=240, producer_registers=240)


def test_other_types_are_left_to_others() -> None:
    with pytest.raises(DiagnosticError, match="does not make"):
        emit(program("causal-softmax", element="f32"))


def test_sums_stay_partial_and_maxima_do_not() -> None:
    context = ir.Context()
    load_all(context)
    with context:
        module = ir.Module.parse(program("causal-softmax"))
        Pipeline.parse("attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-tile{whole=true},canonicalize,cse", registry()).run(
            module
        )
        (kernel,) = find_all(module.operation, "func.func")
        (chain,) = chains(body(kernel))
        assert len(chain) == 2
        partial = partial_sums(chain)
        for loop in chain:
            largest, total, output = list(body(loop).arguments)[1:]
            assert total in partial
            assert largest not in partial
            assert output not in partial


def test_parameters_follow_their_order() -> None:
    code = emit(program("alibi-causal-softmax"))
    kinds = [parameter.kind for parameter in code.parameters]
    order = ["descriptor", "pointer", "counter", "size", "stride", "scalar", "blocks"]
    assert kinds == sorted(kinds, key=order.index)
    declared = re.search(r'extern "C".*?\((.*?)\) \{', code.source, re.DOTALL)
    assert declared is not None
    assert declared.group(1).count(",") == len(kinds)  # and one in __launch_bounds__


def test_every_helper_of_the_headers_is_printed() -> None:
    """By a code generator, by what all GPUs share, or inside of another helper."""
    folder = Path(codegen.__file__).parent
    headers = "\n".join(path.read_text() for path in folder.rglob("*.cuh"))
    printed = "\n".join(path.read_text() for name in ("nvidia", "gpu") for path in (folder.parent / name).rglob("*.py"))
    helpers = set(re.findall(r"ATTN_DEVICE [^;{}()=]*?(\w+)\(", headers))
    assert "tma_load" in helpers and len(helpers) > 40
    unused = helpers - set(re.findall(r"\w+", printed))  # one search for each helper would take 4 s
    defined = {name: len(re.findall(rf"ATTN_DEVICE [^;{{}}()=]*?\b{name}\(", headers)) for name in unused}
    assert not [name for name in unused if len(re.findall(rf"\b{name}\b", headers)) <= defined[name]]
