"""Columns of rows that warpgroups store without an order: the evaluator tells those that overlap from those that lie apart."""

import numpy as np
import pytest

from attn_mlir.mlir import ir
from attn_mlir.reference.warp import Fault, kernels_of, read_kernel, run_scheduled, schedules_of
from contexts import loaded_context

_TILE = "memref<64x64xf16, #warp.shared<128 : i64>>"
_BUFFER = "memref<1x64x64xf16, #warp.shared<128 : i64>>"
_ROWS = "memref<?x?x?x128xf16>"


def _role(name: str, number: int, store: str) -> str:
    """A warpgroup that writes a tile of zeros, meets, and stores it."""
    return f"""
    %buffer{number} = "warp.alloc"() : () -> {_BUFFER}
    %barrier{number} = arith.constant {number} : index
    "warp.role"() ({{
    ^bb1(%g: index):
      %tile = "warp.view"(%buffer{number}, %zero, %zero, %zero) : ({_BUFFER}, index, index, index) -> {_TILE}
      "warp.clear_rows"(%tile, %zero) : ({_TILE}, index) -> ()
      "warp.fence_async"() : () -> ()
      "warp.named_sync"(%barrier{number}) {{threads = 128 : i64}} : (index) -> ()
      {store}
    }}) {{sym_name = "{name}", warpgroups = 1 : i64, warps = 4 : i64, registers = 128 : i64}} : () -> ()"""


def _kernel(by_tma: int, by_lanes: int) -> str:
    places = "%o, %zero, %zero, %zero"
    tma = f"""
      "warp.elect"() ({{
        "warp.store_async"(%tile, {places}, %tma) : ({_TILE}, {_ROWS}, index, index, index, index) -> ()
        "warp.store_commit"() : () -> ()
        "warp.store_wait"() {{pending = 0 : i64, read = false}} : () -> ()
      }}) : () -> ()"""
    lanes = f'"warp.store_lanes"(%tile, {places}, %lanes, %count) : ({_TILE}, {_ROWS}, index, index, index, index, index) -> ()'
    sizes = "lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64"
    return f"""
  "warp.kernel"() ({{
  ^bb0(%o: {_ROWS}):
    %zero = arith.constant 0 : index
    %count = arith.constant 64 : index
    %tma = arith.constant {by_tma} : index
    %lanes = arith.constant {by_lanes} : index
    {_role("first", 1, tma)}
    {_role("second", 2, lanes)}
  }}) {{sym_name = "f", function = "f", {sizes}}} : () -> ()"""


@pytest.mark.parametrize(("by_tma", "by_lanes"), [(0, 0), (64, 64), (0, 64), (64, 0)])
def test_stores_by_tma_and_by_lanes(by_tma: int, by_lanes: int) -> None:
    context = loaded_context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(_kernel(by_tma, by_lanes))
        (kernel,) = kernels_of(module)
        for schedule in schedules_of(kernel).values():
            o = np.full((1, 1, 64, 128), np.nan)
            if by_tma == by_lanes:
                with pytest.raises(Fault, match="overwritten twice"):
                    run_scheduled(read_kernel(kernel), [o], schedule, 1)
            else:
                run_scheduled(read_kernel(kernel), [o], schedule, 1)
                assert not o.any()
