"""pytest: every test draws the same inputs in every run, LLVM optimises for tests of generated code, and those marked `gpu` need a GPU."""

import gc
import os
import sys
import zlib
from collections.abc import Generator

import pytest

# What kernels leave unwritten shows as NaN in every test, and in the processes that tests start; see `backends.allocation`.
os.environ.setdefault("ATTN_MLIR_POISON", "1")

# Before torch is imported anywhere: with several test processes, its threads would only get in each other's way.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# torch.compile prints C++ around our operators: scalar, so that six compilations do not ask which vectors there are, with headers as they
# are, which takes 2 s where precompiling them takes 6, and by no processes that wait for more.
for _name, _value in (("VEC_ISA_OK", "0"), ("CPP_CACHE_PRECOMPILE_HEADERS", "0"), ("COMPILE_THREADS", "1")):
    os.environ.setdefault(f"TORCHINDUCTOR_{_name}", _value)

LEVEL = "ATTN_MLIR_LLVM_LEVEL"
OPTIMISED = frozenset(
    f"test_{name}"
    for name in (
        "ahead autograd cpu_linear cpu_numerics cpu_programs cpu_runtime cpu_targets large_scores "
        "linear_bf16 linear_f16 linear_precision random_calls regressions regressions_gradients rounded_weights split_kv stable_rows "
        "varlen varlen_gradients"
    ).split()
)
"""Files whose tests run the CPU's code as users do: they cover what the backend prints, with every kind of kernel, element and derivative.
Elsewhere it is a means to look at something above, and LLVM, which takes most of a compilation's time to optimise, does not do so."""
_GIVEN = os.environ.get(LEVEL)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "which random inputs tests draw from torch's default generator: each N draws others (default: %(default)s)"
    parser.addoption("--draws", type=int, default=0, metavar="N", help=text)
    text = f"optimise the CPU's code in all tests, as users have it; otherwise in the files of test/conftest.py. {LEVEL} goes before both"
    parser.addoption("--optimised", action="store_true", help=text)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting makes stays to the end: Python's collector neither runs meanwhile nor ever looks at it again.

    It took 6 s of 37 to look at 600,000 objects in each worker, again and again. In tests it runs each time that there are 20,000 more
    objects, instead of 700: most of them are handles of IR and nodes of torch's graphs, and looking at them took 6 % of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seeds torch's default generator by the test's name, whatever ran before it; unseeded, each process would draw others."""
    import torch

    if _GIVEN is None:
        os.environ[LEVEL] = "3" if item.config.getoption("--optimised") or item.path.stem in OPTIMISED else "0"
    seed = zlib.crc32(f"{item.nodeid} {item.config.getoption('--draws')}".encode())
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)  # the same numbers; the other notes a stack for each device that is not there


@pytest.fixture
def unlowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """TileLang lowers nothing, which takes it 5 to 15 s for a kernel with products: for tests that look at what is chosen, not at its CUDA.

    What it makes of such kernels is in `test_nvidia_tilelang`, and in tests of what it is left.
    """
    from attn_mlir.backends.nvidia.tilelang import lowering

    made = lowering.Lowered('extern "C" __global__ void __launch_bounds__(1) stand_in() {}', "stand_in", 0)
    monkeypatch.setattr(lowering, "_AHEAD", {})  # nor does another test get what stands in
    monkeypatch.setattr(lowering, "_lower", lambda program, arch: made)


def pytest_runtest_teardown() -> None:
    """Forgets the graphs of torch.compile: it keeps 8 of a function, and one more is an error with `fullgraph=True`.

    Calls of all engines are one function. Without this, which tests a process ran before would decide whether a ninth one passes.
    """
    if torch_dynamo := sys.modules.get("torch._dynamo"):
        torch_dynamo.reset()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Processes of xdist collect each on their own, and stop where names differ, as those with addresses do.
    if unstable := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"names of cases hold addresses in memory: give `ids`; {', '.join(unstable[:5])}")
    items.sort(key=lambda item: item.path.stem not in OPTIMISED)  # first, so that they find no code in memory that is not optimised
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
