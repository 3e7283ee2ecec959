"""Scans of linear attention for NVIDIA GPUs, through TileLang: every form is printed, one is compiled; the grid of a launch."""

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelCode, KernelParameter
from attn_mlir.backends.host import KernelGrid
from attn_mlir.backends.nvidia import codegen, pipeline
from attn_mlir.backends.nvidia.launch import CudaLauncher
from attn_mlir.backends.nvidia.target import TARGETS
from attn_mlir.backends.nvidia.tilelang import program_of
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry
from contexts import loaded_context
from linear_programs import Linear
from machine_code import compiled, disassembled
from nvidia_fakes import BINARY, fake_gpu
from test_nvidia_tilelang import needs_tools

_ALL = {"initial": True, "final": True, "factor": True, "interval": 256, "element": "bf16", "k": 64, "v": 192}


@contextmanager
def scan(program: Linear | str, **choices: int | str) -> Iterator[ir.Operation]:
    """The scheduled kernel of a scan, or of a program's text."""
    with loaded_context():
        module = ir.Module.parse(program if isinstance(program, str) else program.text())
        for function in find_all(module.operation, "func.func"):
            with module.context:
                function.attributes[attributes.CHOICES] = attributes.write({"emitter": "tilelang", **choices})
        Pipeline.parse(pipeline.KERNEL, registry()).run(module)
        (kernel,) = find_all(module.operation, "func.func")
        yield kernel


@pytest.mark.parametrize(("direction", "state", "mods"), itertools.product(("forward", "backward"), ("kv", "vk"), (False, True)))
def test_every_form_prints(direction: str, state: str, mods: bool) -> None:
    with scan(Linear(chunk=64, direction=direction, state=state, mods=mods, offsets=mods, **_ALL)) as kernel:
        text = program_of(kernel).text
    compile(text, "scan", "exec")
    sequences = "offsets_size0 - 1" if mods else "v_size0"
    assert f"with T.Kernel(3, v_size1, {sequences}, threads=128) as (block, head, batch):" in text
    # Scans with products multiply the state, what enters it, and in bf16 weights in two pieces.
    assert text.count("T.gemm(") == 7 and text.count("transpose_A=True") == 2
    assert "products[block, " in text  # a slot for each of the three blocks of columns


def test_terms_that_products_leave_out_have_slots_of_their_own() -> None:
    with scan(Linear(chunk=64, own=True, result=True, **_ALL)) as kernel:
        text = program_of(kernel).text
    compile(text, "scan", "exec")
    assert len(re.findall(r"\b(?:products|own)\[block, ", text)) == 2


@pytest.mark.parametrize("mods", [False, True])
def test_what_rows_get_of_their_own_row_of_v_prints(mods: bool) -> None:
    with scan(Linear(chunk=64, skip=True, mods=mods, k=64, v=64, element="bf16")) as kernel:
        text = program_of(kernel).text
    compile(text, "scan", "exec")
    assert text.count("T.gemm(") == 4


@pytest.mark.parametrize(("direction", "channels"), itertools.product(("forward", "backward"), ("key", "value")))
def test_decays_of_channels_print(direction: str, channels: str) -> None:
    state = "kv" if channels == "key" else "vk"
    with scan(Linear(chunk=32, direction=direction, channels=channels, state=state, mods=True, **_ALL)) as kernel:
        text = program_of(kernel).text
    compile(text, "scan", "exec")
    assert 'prefix = T.alloc_shared((32, 64), "float32")' in text


@pytest.mark.parametrize(("element", "scaled"), [("f16", 1), ("bf16", 0)])
def test_residuals_are_multiplied_scaled(element: str, scaled: int) -> None:
    """Of the state, of what enters it, and of v times weights: 2^11 times as large as it is, where f16 would have few digits of it left."""
    program = Linear(chunk=32, channels="value", state="vk", direction="backward", factor=True, interval=64, k=64, v=64, element=element)
    with scan(program) as kernel:
        text = program_of(kernel).text
    assert text.count('* 2048.0, "float16")') == text.count("] * 2048.0\n") == text.count(f"] * {1 / 2048}\n") == 3 * scaled


def test_tiles_that_are_multiplied_once_share_memory() -> None:
    """Pairs of channels' decays are products of one level after the other, and only one level's factors are in shared memory."""
    with scan(Linear(chunk=32, channels="key", k=128, v=64, element="bf16")) as kernel:
        made = program_of(kernel)
    scaled = re.findall(r"(\w+) = T.alloc_shared\(\(32, 128\), \"bfloat16\"\)", made.text)
    assert made.text.count("transpose_B=True") == 5 and len(scaled) < 6
    first, second = re.findall(r"T.gemm\((\w+), (\w+), \w+, transpose_B=True", made.text)[:2]
    assert first == second
    assert 2 * (made.shared_bytes + 1024) <= TARGETS["sm_90a"].shared_bytes + 1024


def test_scans_with_products_have_more_pairs_one_by_one() -> None:
    """What products of tiles round would spoil gradients of decays, which are small differences; others have none but a position's own."""
    with scan(Linear(chunk=32, channels="key", k=128, v=128, element="bf16")) as kernel:
        text = program_of(kernel).text
    assert "for kv in T.serial(" not in text and "with T.Kernel(1, v_size1, v_size0, threads=256)" in text
    with scan(Linear(chunk=32, channels="value", state="vk", factor=True, interval=64, k=128, v=128, element="bf16")) as kernel:
        text = program_of(kernel).text
    assert "for kv in T.serial(16):" in text and "with T.Kernel(2, v_size1, v_size0, threads=128)" in text


def test_two_programs_on_a_multiprocessor_come_before_loading_ahead() -> None:
    found = {}
    for k, v in ((64, 64), (128, 128), (256, 64)):
        with scan(Linear(chunk=64, k=k, v=v, element="f16", offsets=True)) as kernel:
            found[k, v] = attributes.read(kernel, attributes.SCHEDULE)
    assert [(fields["threads"], fields["stages"]) for fields in found.values()] == [(128, 2), (128, 1), (128, 2)]
    with scan(Linear(chunk=64, k=128, v=128, value_block=128, element="f16")) as kernel:
        assert "stages" in attributes.read(kernel, attributes.SCHEDULE)


@needs_tools
def test_a_scan_compiles(tmp_path: Path) -> None:
    more = {"factor": True, "diagonal": True, "result": True, "interval": 256, "offsets": True, "row_mods": True}
    program = Linear(chunk=64, k=64, v=64, direction="backward", state="vk", element="bf16", **more)
    with scan(program) as kernel:
        code = codegen.emit(kernel)
    binary = compiled(code)
    assert binary.spills == 0
    path = tmp_path / "kernel.cubin"
    path.write_bytes(binary.code)
    assert "HGMMA" in disassembled(path)


@needs_tools
@pytest.mark.parametrize("columns", [48, 192])
def test_rows_of_any_number_of_columns_are_summed_up(columns: int) -> None:
    """Threads share a row evenly where its columns are a power of two."""
    a, s = "tensor<?x?x?x64xf32>", f"tensor<?x?x?x{columns}xf32>"
    text = f"""
func.func @sums(%a: {a}, %b: {a}, %s: {s}, %e: {s}) -> {a} {{
  %r = "attn.decay_gradient"(%a, %b, %s, %e) {{interval = 64 : i64, rows = 64 : i64}} : ({a}, {a}, {s}, {s}) -> {a}
  return %r : {a}
}}"""
    with scan(text) as kernel:
        code = codegen.emit(kernel)
    assert f"terms = T.alloc_fragment((64, {1 << (columns - 1).bit_length()}), " in str(code.program)
    assert "reduce" in code.source


def test_a_launch_has_a_program_for_each_block_head_and_sequence() -> None:
    parameters = (KernelParameter("pointer", 0, align=8), KernelParameter("pointer", 1))
    code = KernelCode("scan", "scan", "", parameters, 128, 0)
    v, offsets = torch.zeros(1, 6, 100, 64, dtype=torch.float16), torch.tensor([0, 10, 40, 100])
    for sequences, wanted in ((-1, (3, 6, 1)), (1, (3, 6, 3))):
        kernel = KernelGrid("scan", 64, "chunks", 0, ("store",), ((),), False, blocks=3, sequences=sequences)
        with fake_gpu():
            launcher = CudaLauncher(kernel, code, BINARY, torch.device("cpu"), 0)
            assert launcher._grid(launcher._extents([v, offsets]))[0] == wanted
