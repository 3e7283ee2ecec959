"""The kernels of delta rules for sm_90a, without a GPU: each has a schedule and fits, and hardly one goes through TileLang."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.compiled_kernels import outlined
from attn_mlir.backends.gpu.scheduled import scheduled as scheduled_module
from attn_mlir.backends.host import Host, read_host
from attn_mlir.backends.nvidia import codegen, pipeline, thresholds, tilelang
from attn_mlir.backends.nvidia.compile import compile_code
from attn_mlir.backends.nvidia.derivatives import derivative
from attn_mlir.backends.nvidia.target import TARGETS
from attn_mlir.backends.nvidia.tilelang import program_of
from attn_mlir.backends.program import function_named, prepare_derivative
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.linear import LinearDefinition, trace_linear
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry
from contexts import loaded_context
from test_nvidia_tilelang import needs_tools

_BETA = torch.rand(1, 4, 8)
ARCH = "sm_90a"


@contextmanager
def scheduled(
    element: str, channels: bool, columns: int, function: str = "bwd", segment: int = 0, **form: Any
) -> Iterator[list[ir.Operation]]:
    """The scheduled kernels of a gated delta rule (with decays of channels: KDA), or of its gradient with respect to all it reads."""
    rule = LinearDefinition(
        decay="step channel" if channels else "step", erase="step", scale=0.125, v_mod=lambda v, b, h, t: v * _BETA[b, h, t],
        initial_state=True, final_state=True, **form,
    )  # fmt: skip
    traced = trace_linear(rule, Inputs(element, columns, columns))
    wrt = ["q", "k", "v", *(f"arg{3 + i}" for i in range(len(traced.captures)))]
    name, prepare = prepare_derivative(function, wrt, pipeline.outline(ARCH), segment)
    with loaded_context():
        module = ir.Module.parse(traced.text)
        Pipeline.parse(prepare, registry()).run(module)
        host: Host = read_host(function_named(module, name))
        outlined(module, host, {"arch": ARCH})
        Pipeline.parse(pipeline.KERNEL, registry()).run(module)
        yield [function_named(module, step.kernel) for step in host.steps if step.kernel]


@pytest.mark.parametrize("dims", [(128, 128), (256, 64), (64, 192)], ids=str)
def test_gradients_have_the_intervals_of_their_states(dims: tuple[int, int]) -> None:
    """Columns of k and v decide together: where either has more than 128, no scan keeps its states every 64 positions."""
    rule = LinearDefinition(decay="step", erase="step", scale=0.125)
    traced = trace_linear(rule, Inputs("bf16", *dims))
    wrt = ["q", "k", "v", *(f"arg{3 + i}" for i in range(len(traced.captures)))]
    _, prepare = prepare_derivative("bwd", wrt, pipeline.outline(ARCH))
    with loaded_context():
        module = ir.Module.parse(traced.text)
        Pipeline.parse(prepare, registry()).run(module)
        ops = [op for op in find_all(module.operation, "attn.linear_attention", "attn.decay_gradient") if "crossing" in op.attributes]
        intervals = {op.name: ir.IntegerAttr(op.attributes["interval"]).value for op in ops if "interval" in op.attributes}
    assert len(intervals) == 2 and set(intervals.values()) == {64 if max(dims) <= 128 else 32}, intervals


def chunk_scans(kernels: list[ir.Operation]) -> list[ir.Operation]:
    return [kernel for kernel in kernels if attributes.grid_kind(kernel) == "chunks"]


@pytest.mark.parametrize(
    ("element", "channels", "columns"),
    [("f16", False, 64), ("bf16", True, 128), *((element, channels, 256) for element in ("f32", "bf16") for channels in (False, True))],
)
def test_every_kernel_has_a_schedule(element: str, channels: bool, columns: int) -> None:
    """Without one, or without a word for an op, `tile-schedule` reports an error."""
    for function, count in (("fwd", 1), ("bwd", 5)):
        with scheduled(element, channels, columns, function) as kernels:
            scans = chunk_scans(kernels)
            assert len(scans) == count
            for kernel in scans:
                fields = attributes.read(kernel, attributes.SCHEDULE)
                assert fields["arch"] == ARCH
                if fields["emitter"] == "scans":
                    assert codegen.emit(kernel).shared_bytes <= TARGETS[ARCH].shared_bytes
            emitters = Counter(str(attributes.read(kernel, attributes.SCHEDULE)["emitter"]) for kernel in kernels)
            # The three pieces of 256 channels with decays of their own do not fit where a system is solved in a gradient.
            tilelang = 1 if (element, channels, columns, function) == ("f32", True, 256, "bwd") else 0
            assert emitters.keys() <= {"scans", "simt", "tilelang"} and emitters["tilelang"] == tilelang


def matrices(kernels: list[ir.Operation]) -> list[ir.Operation]:
    """Those that pass states from segment to segment."""
    return [kernel for kernel in kernels if "transition_scan" in ir.StringAttr(kernel.attributes["sym_name"]).value]


@pytest.mark.parametrize(("element", "columns"), [("f32", 128), ("bf16", 256), ("bf16", 128)])
def test_states_pass_between_segments_by_products(element: str, columns: int) -> None:
    """Towards later positions those of states, towards earlier ones those of their gradient; forward by warpgroups, where rows fit."""
    for function, count in (("fwd", 1), ("bwd", 2)):
        with scheduled(element, False, columns, function, segment=512) as kernels:
            found = matrices(kernels)
            assert len(found) == count
            for kernel in found:
                schedule = attributes.read(kernel, attributes.SCHEDULE)
                assert schedule["emitter"] == "scans"
                assert function != "fwd" or ("warpgroups" in schedule) == (element == "bf16" and columns == 128)
                assert codegen.emit(kernel).shared_bytes <= TARGETS[ARCH].shared_bytes


def test_rows_of_o_take_the_places_of_v_where_three_stages_fit_then() -> None:
    """The scan for o of segments: two stages fit with rows in places of their own."""
    with scheduled("bf16", False, 128, "fwd", segment=512) as kernels:
        *_, scan = chunk_scans(kernels)
        schedule = attributes.read(scan, attributes.SCHEDULE)
        assert (schedule["stages"], schedule["in_place"]) == (3, 1)
        source = codegen.emit(scan).source
    rows, tile = (
        re.search(pattern, source) for pattern in (r"keep_turned<.*?>\(\((memory \+ \d+)", r"load_turned<.*?>\(\((memory \+ \d+)")
    )
    assert rows and tile and rows[1] == tile[1]
    assert source.index("        give(") < source.index("      fetch(")  # rows are in memory before TMA fills their place


@pytest.mark.parametrize(("stages", "warpgroups"), [(4, True), (7, False)])
def test_named_barriers_are_those_of_a_thread_block(stages: int, warpgroups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are 16; more stages than these suffice for are refused, whatever shared memory has room for."""
    monkeypatch.setitem(thresholds.SCAN_SCHEDULES, "warpgroups", {"stages": (stages,), "in_place": (1,)})
    with scheduled("bf16", False, 64, "fwd") as kernels:
        (scan,) = chunk_scans(kernels)
        assert ("warpgroups" in attributes.read(scan, attributes.SCHEDULE)) == warpgroups
        source = codegen.emit(scan).source
    found = [(int(first), "stage" in text) for text, first in re.findall(r"named_(?:sync|arrive)\(((\d+)[^,]*),", source)]
    assert all(first + (stages - 1) * per_stage < 16 for first, per_stage in found) and bool(found) == warpgroups


@needs_tools
def test_sums_over_columns_of_eight_warps_compile() -> None:
    """TileLang refuses to sum what 8 warps hold 16 columns each of (version 0.1.15)."""
    with scheduled("f32", False, 128) as kernels:
        for kernel in chunk_scans(kernels):
            fields = tilelang.plan(kernel, TARGETS[ARCH], {})
            if fields is not None:
                kernel.attributes[attributes.SCHEDULE] = attributes.write({"emitter": "tilelang", "arch": ARCH, **fields})
        scans = [kernel for kernel in chunk_scans(kernels) if attributes.read(kernel, attributes.SCHEDULE)["emitter"] == "tilelang"]
        programs = {kernel: program_of(kernel) for kernel in scans}
        summing = [kernel for kernel, made in programs.items() if made.threads == 256 and "T.reduce_sum" in made.text]
        assert summing
        code = codegen.emit(min(summing, key=lambda kernel: len(programs[kernel].text)))
    made = compile_code(code)
    assert code.language == "tilelang" and made.registers and len(made.code) > 10_000


def codes_of(channels: bool, function: str, erase: str = "step") -> dict[str, str]:
    """The CUDA of the scans and chunks of a rule of 128 columns, by name, as it is compiled for calls with gradients."""
    rule = LinearDefinition(decay="step channel" if channels else "step", erase=erase, scale=0.125)
    traced = trace_linear(rule, Inputs("bf16", 128, 128))
    wrt = ["q", "k", "v", *(f"arg{3 + i}" for i in range(len(traced.captures)))]
    with loaded_context() as context:
        choices: attributes.Fields = {"arch": ARCH}
        module, host = scheduled_module(context, traced.text, *derivative(function, wrt, ARCH), choices, pipeline.KERNEL, "NVIDIA")
        kernels = {step.kernel: function_named(module, step.kernel) for step in host.steps if step.kernel}
        scans = {name: op for name, op in kernels.items() if attributes.read(op, attributes.SCHEDULE)["emitter"] == "scans"}
        return {name: codegen.emit(op).source for name, op in scans.items()}


def test_tma_brings_tiles_where_three_stages_fit() -> None:
    """Where a gradient's scan reads erase keys that are no multiples of k's rows, two stages fit, and threads copy."""
    cases = [(False, "fwd", "step", True), (False, "bwd", "step", True), (False, "bwd", "step channel", False)]
    cases += [(True, "fwd", "step", True), (True, "bwd", "step", True)]
    for channels, function, erase, by_tma in cases:
        texts = {name: text for name, text in codes_of(channels, function, erase).items() if not name.endswith("_chunks")}
        (source,) = [text for text in texts.values() if "  attn::wgmma_begin();" in text]
        assert ("  attn::tma_load(" in source, "  attn::copy_atoms<" in source) == (by_tma, not by_tma)


def test_o_reads_states_as_they_are_rounded() -> None:
    """What erasing reads, and all that is written, has two pieces: k S 16 instructions, q S 8, T R 12, P U 8; k U, of 128 columns, 8."""
    with scheduled("bf16", False, 128, "fwd") as kernels:
        scan = next(kernel for kernel in chunk_scans(kernels) if "warpgroups" in attributes.read(kernel, attributes.SCHEDULE))
        source = codegen.emit(scan).source
    body = source[source.index('extern "C"') :]
    assert body.count("attn::wgmma_m64n64k16_rs_bf16(") == 16 + 8 + 12 + 8 and body.count("attn::wgmma_m64n128k16_rs_bf16_tb(") == 8
    assert body.count("attn::bulk_load(") == 5 and "rsqrtf" not in body and "exp2f" not in body


def test_products_of_levels_are_made_by_the_warps_that_have_their_pairs() -> None:
    """Up to 8 positions within a block of 16, those of 16 beside it; without decays of channels all warps make all."""
    found = codes_of(True, "fwd")["attention_fwd_0_linear_attention_chunks"]
    assert found.count("if (warp / 2 == warp % 2) attn::multiply<") == 4 and found.count("if (warp / 2 != warp % 2) attn::multiply<") == 1
    assert "if (warp / 2" not in codes_of(False, "fwd")["attention_fwd_0_linear_attention_chunks"]


def test_rows_of_memory_are_added_up_by_whole_warps() -> None:
    """The gradient of decays of heads adds up products of states: lanes read neighbouring numbers, not those of a product's part."""
    (source,) = [text for name, text in codes_of(False, "bwd").items() if "decay_gradient_sum" in name]
    body = source[source.index('extern "C"') :]
    assert "for (int i = warp; i < 128; i += 8) {" in body and "for (int j = lane; j < 128; j += 32) {" in body
    assert "attn::sum_of_row(" not in body
