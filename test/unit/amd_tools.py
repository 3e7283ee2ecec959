"""What tests of the AMD backend need: clang for the CPU, clang for AMD GPUs, and LLVM's disassembler.

Tests without them are skipped and say why; with `ATTN_MLIR_REQUIRE_CLANG=1`, as in `.ci/run`, they fail.
"""

import os
from collections.abc import Callable

import pytest

from attn_mlir.backends.amd.clang import find_clang, find_host_clang, find_tool
from attn_mlir.errors import UnsupportedError


def _needs(find: Callable[[], object]) -> pytest.MarkDecorator:
    reason = ""
    try:
        find()
    except UnsupportedError as error:
        reason = str(error)
    required = os.environ.get("ATTN_MLIR_REQUIRE_CLANG") == "1"
    return pytest.mark.skipif(bool(reason) and not required, reason=reason or "found")


needs_host_clang = _needs(find_host_clang)
needs_clang = _needs(find_clang)
needs_objdump = _needs(lambda: find_tool("llvm-objdump", find_clang()))
