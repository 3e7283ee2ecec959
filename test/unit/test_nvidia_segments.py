"""Linear attention in segments on NVIDIA: who makes which kernel, and what the scan for states leaves out."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import codegen, pipeline
from attn_mlir.backends.nvidia import compile as nvcc
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry
from contexts import loaded_context
from linear_programs import Linear
from nvidia_fakes import set_apart


@contextmanager
def kernels(function: str = "", segment: int = 512, **fields: object) -> Iterator[dict[str, ir.Operation]]:
    """The scheduled kernels of a program by what they compute, without the number in their name."""
    program = Linear(**{"chunk": 0, "k": 128, "v": 128, "element": "bf16", **fields})  # pyright: ignore[reportArgumentType]
    _, prepare = prepare_derivative(function, ["q", "k", "v", "arg3"] if function else [], segment=segment)
    prepare = prepare.replace("attn-outline", "attn-outline{keep-hosts=false}")
    with loaded_context():
        module = ir.Module.parse(program.text())
        Pipeline.parse(f"{prepare},{pipeline.KERNEL}", registry()).run(module)
        found: dict[str, ir.Operation] = {}
        for op in find_all(module.operation, "func.func"):
            name = re.sub(r"^attention(_bwd)?_\d+_", "", ir.StringAttr(op.attributes["sym_name"]).value)
            while name in found:
                name += "+"
            found[name] = op
        yield found


def emitters(found: dict[str, ir.Operation]) -> dict[str, str]:
    return {name: str(attributes.read(op, attributes.SCHEDULE)["emitter"]) for name, op in found.items()}


def test_no_kernel_of_a_forward_in_segments_goes_through_tilelang() -> None:
    with kernels(initial=True, final=True) as found:
        assert emitters(found) == {"linear_attention": "warp", "decay_sum": "simt", "state_scan": "simt", "linear_attention+": "warp"}


def test_a_scan_for_states_loads_no_queries() -> None:
    with kernels() as found:
        sources = [codegen.emit(found[name]).source for name in ("linear_attention", "linear_attention+")]
    summary, scan = (source[source.index('extern "C"') :] for source in sources)
    made = ("uint32_t weights", "store_matrices(", "tma_store", "wgmma_m64n64k16_ss_bf16_ta")
    assert not [text for text in made if text in summary]
    assert all(text in scan for text in made)
    assert (summary.count("tma_load("), scan.count("tma_load(")) == (4, 6)
    assert (summary.count("CUtensorMap "), scan.count("CUtensorMap ")) == (2, 4)


def test_states_that_products_are_made_of_enter_in_two_pieces() -> None:
    with kernels("bwd") as found:
        made = [codegen.emit(op).source for name, op in found.items() if emitters({name: op})[name] == "warp"]
    summaries = [source for source in made if "tma_store(&" not in source]
    assert len(summaries) == 2 and all(len(re.findall(r"\w+_low\b", source)) > 0 for source in summaries)


def test_segments_are_parts_of_a_batch() -> None:
    with kernels() as found:
        source = codegen.emit(found["linear_attention+"]).source
    assert "ceil_quotient<int>(v_n2, 512)" in source


def test_a_thread_keeps_its_part_of_the_state_between_segments() -> None:
    with kernels(initial=True, final=True) as found:
        source = codegen.emit(found["state_scan"]).source
    turn = source[source.index("#pragma unroll 4") :]
    # The store of the state before a segment comes after the load of what the segment adds, and before the state changes.
    assert turn.index("load_pack") < turn.index("store_pack") < turn.index("state.x[e] =")


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_decays_of_channels(direction: str) -> None:
    with kernels(channels="key", direction=direction) as found:
        assert emitters(found) == {
            "linear_attention": "hopper", "decay_sum": "simt", "state_scan": "simt", "linear_attention+": "hopper",
        }  # fmt: skip
        sources = [codegen.emit(found[name]).source for name in ("linear_attention", "linear_attention+")]
    summary, scan = (source[source.index('extern "C"') :] for source in sources)
    made = ("kLevels", "ChannelPairs", "tma_store", "float o[")
    assert not [text for text in made if text in summary]
    assert all(text in scan for text in made)
    assert ("make_tiles<false, true>" if direction == "forward" else "make_tiles<true, false>") in summary


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on the PATH")
def test_all_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    set_apart(monkeypatch, tmp_path)  # pyright: ignore[reportArgumentType]
    codes: list[KernelCode] = []
    with kernels(initial=True, final=True) as found:
        codes += [codegen.emit(op) for op in found.values()]
    with kernels(channels="key") as found:
        codes.append(codegen.emit(found["linear_attention"]))
    for binary in nvcc.compile_all(codes):
        assert binary.spills == 0 and not [text for text in binary.warnings if "C75" in text]
