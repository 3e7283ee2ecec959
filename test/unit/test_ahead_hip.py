"""Libraries for AMD GPUs on a libamdhip64 whose launches are interpreted: the bits of Python, float64, errors, the stream."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ahead_hip_linear
import attn_mlir
from ahead_calls import plain_host
from ahead_hip_calls import load
from ahead_hip_cases import ALIBI, CASES, Spec, compared, failures, streams, strided, without_runtime, without_workspace
from amd_tools import needs_clang, needs_objdump
from attn_mlir.errors import UnsupportedError
from processes import pool

C, CXX = shutil.which("cc") or shutil.which("gcc"), shutil.which(os.environ.get("CXX") or "c++")
pytestmark = [pytest.mark.skipif(not (C and CXX), reason="needs a C and a C++ compiler"), needs_clang, needs_objdump]
SOURCE = Path(__file__).parents[1] / "Inputs" / "fake_hip.c"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The library of a case, compiled once."""
    found: dict[str, Path] = {}
    folder = tmp_path_factory.mktemp("hip")

    def make(name: str) -> Path:
        if name not in found:
            attention, spec, _, more = CASES[name]
            with plain_host(name != "alibi"):
                found[name] = attn_mlir.compile_ahead(attention, spec, "gfx90a", folder / f"lib{name}.so", **more).library
        return found[name]

    return make


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Calls a function in a process that has a libamdhip64 of the tests in place of the real one."""
    library = tmp_path_factory.mktemp("driver") / "libamdhip64.so"
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation", "-Wl,-soname,libamdhip64.so"]
    subprocess.run([str(C), *flags, str(SOURCE), "-o", str(library)], check=True)
    with pool(load, library) as process:
        yield lambda function, *arguments: process.submit(function, *arguments).result()


@pytest.mark.parametrize("name", CASES)
def test_results_have_the_bits_of_python(made: Callable[[str], Path], elsewhere: Callable[..., Any], name: str) -> None:
    """Forward, training and backward: the embedded code objects run on the arguments that the library packs, in the memory that it has."""
    found = elsewhere(compared, made(name), name)
    assert set(found) == ({"forward"} if name == "wide" else {"forward", "training_forward", "backward"})
    for mine, wanted in found.values():
        assert len(mine) == len(wanted) > 0
        assert all(torch.equal(a, b) for a, b in zip(mine, wanted, strict=True))


@pytest.mark.parametrize("name", ahead_hip_linear.CASES)
def test_linear_attentions_and_engines_have_the_bits_of_python(tmp_path: Path, elsewhere: Callable[..., Any], name: str) -> None:
    attention, spec, wrt = ahead_hip_linear.CASES[name]
    with plain_host(name != "states"):
        made = attn_mlir.compile_ahead(attention, spec, "gfx90a", tmp_path / f"lib{name}.so", wrt=wrt)
    found = elsewhere(ahead_hip_linear.compared, made.library, name)
    for mine, wanted in found.values():
        assert len(mine) == len(wanted) > 0
        assert all(torch.equal(a, b) for a, b in zip(mine, wanted, strict=True))


def test_results_are_near_float64(made: Callable[[str], Path], elsewhere: Callable[..., Any]) -> None:
    """Rows far from each other in memory, at odd addresses, and results with gaps: the library copies what kernels cannot read or write."""
    found, copies = elsewhere(strided, made("alibi"))
    assert copies > 0
    for name, (mine, wanted) in found.items():
        error = (mine.double() - wanted).abs().max() / wanted.abs().max()
        assert error < (2e-3 if name.startswith("d_") else 1e-3), (name, error)


def test_it_takes_memory_where_it_has_none(made: Callable[[str], Path], elsewhere: Callable[..., Any]) -> None:
    calls, size = elsewhere(without_workspace, made("alibi"))
    names = [each["call"] for each in calls]
    taken = next(each for each in calls if each["call"] == "take")
    assert names.count("take") == names.count("free") == 1 and taken["size"] == size
    assert names.index("take") < names.index("launch") < names.index("free")
    assert {each["stream"] for each in calls if "stream" in each} == {100}
    launches = [each for each in calls if each["call"] == "launch"]
    assert all(each["shared"] == each["extra"] == 0 and each["threads"][1:] == [1, 1] for each in launches)


def test_it_needs_no_runtime_to_be_linked(made: Callable[[str], Path]) -> None:
    needed = subprocess.run(["ldd", str(made("odd"))], capture_output=True, text=True, check=True).stdout
    assert "hip" not in needed and "torch" not in needed


def test_without_a_runtime_sizes_are_told_and_calls_fail(made: Callable[[str], Path]) -> None:
    if torch.version.hip or Path("/opt/rocm").exists():
        pytest.skip("there is a runtime")
    size, message = without_runtime(made("odd"))
    assert size > 0 and message == "10: this machine has no HIP runtime (libamdhip64.so): install ROCm"


def test_errors(made: Callable[[str], Path], elsewhere: Callable[..., Any]) -> None:
    wrong, start, code, launch, memory, other, stream, small, host, cuda = elsewhere(failures, made("odd"))
    assert wrong == "9: device 2, a AMD Fake, runs no code for gfx90a, for which the library was made"
    assert start == "10: starting the HIP runtime: hipErrorFake (100): what the runtime says of it"
    assert code == "10: loading a kernel: hipErrorFake (200): what the runtime says of it"
    assert launch.startswith("10: launching attn_copy: hipErrorFake (719)")
    assert memory.startswith("10: taking ") and "bytes of memory for a workspace: hipErrorFake (2)" in memory
    assert other == "5: k is on ROCm device 1, but q is on 0"
    assert stream == "5: the stream is of another device than q, which is on 0"
    assert small.startswith("7: the workspace has 16 bytes, ")
    assert host == "5: q is on device type 1, this library reads the memory of ROCm devices (kDLROCM)"
    assert cuda == "5: q is on device type 2, this library reads the memory of ROCm devices (kDLROCM)"


def test_everything_is_on_the_stream_and_device_of_the_call(made: Callable[[str], Path], elsewhere: Callable[..., Any]) -> None:
    calls, (captured, eager), device = elsewhere(streams, made("lookup"))
    names = [each["call"] for each in calls]
    assert names.count("launch") == 1 and names.index("wait") < names.index("launch")
    assert {each["stream"] for each in calls if "stream" in each} == {103}
    assert {each["device"] for each in calls if each["call"] == "load"} == {3} and device == 0
    assert captured == ""  # nothing can be read there
    assert eager.startswith("6: table has size 7 in dimension 0, but is read at places") and eager.endswith("runs over 0..9")


def test_header_of_a_library(made: Callable[[str], Path]) -> None:
    header = made("alibi").with_name("alibi.h").read_text()
    assert "compiled ahead of time for gfx90a" in header and "int32_t alibi_backward(" in header


def test_what_no_kernel_takes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="kernels for AMD GPUs take 16-bit inputs, but q, k and v are f32"):
        attn_mlir.compile_ahead(ALIBI, Spec(torch.float32, 64), "gfx90a", tmp_path / "libx.so")
    assert not list(tmp_path.iterdir())
