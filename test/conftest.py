"""pytest: every test draws the same inputs in every run, and tests marked `gpu` are skipped on machines without a GPU."""

import os
import zlib

import pytest

# What kernels leave unwritten shows as NaN in every test, and in the processes that tests start; see `backends.allocation`.
os.environ.setdefault("ATTN_MLIR_POISON", "1")

# Before torch is imported anywhere: with several test processes, its threads would only get in each other's way.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "which random inputs tests draw from torch's default generator: each N draws others (default: %(default)s)"
    parser.addoption("--draws", type=int, default=0, metavar="N", help=text)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seeds torch's default generator by the test's name, whatever ran before it; unseeded, each process would draw others."""
    import torch

    torch.manual_seed(zlib.crc32(f"{item.nodeid} {item.config.getoption('--draws')}".encode()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
