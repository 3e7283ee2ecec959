"""Small kernels of the `warp` dialect: orders of additions, the tile scheduler, loads to registers, products of single warps."""

import numpy as np
import pytest

from attn_mlir.mlir import ir
from attn_mlir.reference.warp import Fault, kernels_of, read_kernel, run_scheduled, schedules_of
from contexts import loaded_context

TYPES = """
#smem = #warp.shared<128 : i64>
!acc = tensor<64x72xf32, #warp.layout<"wgmma", "tile">>
!half = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
!rows = tensor<64xf32, #warp.layout<"wgmma", "rows">>
!ring = memref<1x64x64xf16, #smem>
!tile = memref<64x64xf16, #smem>
!ones = memref<64x8xf16, #smem>
!both = memref<64x72xf16, #smem>
!counters = memref<?xi32>
!sums = memref<?x?x?xf32>
!heads = memref<?x?x?x64xf16>
!out = memref<?x?x?x72xf32>
"""
LAUNCH = '{sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()'
ROLE = '{sym_name = "all", warpgroups = 1, warps = 4, registers = 168} : () -> ()'
# What comes in the order of numbers: the sums, plus `%next`; then the next one's turn.
ADDED = """%old = "warp.load"(%sums, %c0, %c0, %c0) : (!sums, index, index, index) -> !rows
    %new = "warp.map"() ({
    ^bb0(%i: index):
      %x = tensor.extract %old[%i] : !rows
      %whole = arith.index_cast %next : index to i32
      %own = arith.sitofp %whole : i32 to f32
      %y = arith.addf %x, %own : f32
      "warp.yield"(%y) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], shape = array<i64: 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> !rows
    "warp.store"(%new, %sums, %c0, %c0, %c0) : (!rows, !sums, index, index, index) -> ()
    "warp.named_sync"(%c8) {threads = 128} : (index) -> ()
    "warp.elect"() ({
      "warp.order_pass"(%counters, %c0, %next) : (!counters, index, index) -> ()
    }) : () -> ()"""
# Every block reads, adds its number plus one and writes, in the order of the numbers.
ORDERED = f"""
"warp.kernel"() ({{
^bb0(%sums: !sums, %counters: !counters):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %id = "warp.block_id"() : () -> index
  %next = arith.addi %id, %c1 : index
  "warp.role"() ({{
  ^bb0(%w: index):
    "warp.order_wait"(%counters, %c0, %id) : (!counters, index, index) -> ()
    {ADDED}
  }}) {ROLE}
}}) {LAUNCH}
"""
# A dynamic tile scheduler: a number of the counter is a head; a message tells it to the other warps.
COUNTED = f"""
"warp.kernel"() ({{
^bb0(%sums: !sums, %counter: !counters):
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %one = arith.constant 1.0 : f32
  %heads = arith.constant 5 : index
  %message = "warp.alloc"() : () -> memref<1x1xi32, #warp.shared<0 : i64>>
  "warp.role"() ({{
  ^bb0(%w: index):
    scf.while : () -> () {{
      "warp.named_sync"(%c8) {{threads = 128}} : (index) -> ()
      "warp.elect"() ({{
        %next = "warp.next_tile"(%counter, %c8) : (!counters, index) -> index
        %number = arith.index_cast %next : index to i32
        memref.store %number, %message[%c0, %c0] : memref<1x1xi32, #warp.shared<0 : i64>>
      }}) : () -> ()
      "warp.named_sync"(%c8) {{threads = 128}} : (index) -> ()
      %number = memref.load %message[%c0, %c0] : memref<1x1xi32, #warp.shared<0 : i64>>
      %head = arith.index_cast %number : i32 to index
      %more = arith.cmpi slt, %head, %heads : index
      scf.if %more {{
        %ones = "warp.map"() ({{
        ^bb0(%i: index):
          "warp.yield"(%one) {{operandSegmentSizes = array<i32: 1, 0, 0>}} : (f32) -> ()
        }}) {{reductions = [""], shape = array<i64: 64>, resultSegmentSizes = array<i32: 1, 0, 0>}} : () -> !rows
        "warp.atomic_add"(%ones, %sums, %c0, %head, %c0, %c0) {{ordered = false}} : (!rows, !sums, index, index, index, index) -> ()
      }}
      scf.condition(%more)
    }} do {{
      scf.yield
    }}
  }}) {ROLE}
}}) {LAUNCH}
"""
# Rows travel through registers to shared memory; each warp multiplies its rows by two tiles side by side, one of them all ones.
STAGED = f"""
"warp.kernel"() ({{
^bb0(%q: !heads, %k: !heads, %o: !out):
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %one = arith.constant 1.0 : f16
  %zero = arith.constant 0.0 : f32
  %a_buffer = "warp.alloc"() : () -> !ring
  %b_buffer = "warp.alloc"() : () -> !ring
  %ones_buffer = "warp.alloc"() : () -> !ring
  "warp.role"() ({{
  ^bb0(%w: index):
    %first = "warp.load_async"(%q, %c0, %c0, %c0, %c0) : (!heads, index, index, index, index) -> !warp.pending<!half>
    %second = "warp.load_async"(%k, %c0, %c0, %c0, %c0) : (!heads, index, index, index, index) -> !warp.pending<!half>
    %a_tile = "warp.view"(%a_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    %b_tile = "warp.view"(%b_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    %ones_tile = "warp.view"(%ones_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    %ones = "warp.view"(%ones_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !ones
    %ones_made = "warp.map"() ({{
    ^bb0(%i: index, %j: index):
      "warp.yield"(%one) {{operandSegmentSizes = array<i32: 1, 0, 0>}} : (f16) -> ()
    }}) {{reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>}} : () -> !half
    "warp.write"(%ones_made, %ones_tile) : (!half, !tile) -> ()
    %a = "warp.load_wait"(%first) {{pending = 1}} : (!warp.pending<!half>) -> !half
    "warp.write"(%a, %a_tile) : (!half, !tile) -> ()
    %b = "warp.load_wait"(%second) {{pending = 0}} : (!warp.pending<!half>) -> !half
    "warp.write"(%b, %b_tile) : (!half, !tile) -> ()
    "warp.named_sync"(%c8) {{threads = 128}} : (index) -> ()
    %left = "warp.read"(%a_tile) : (!tile) -> !half
    %wide = "warp.concat"(%b_tile, %ones) : (!tile, !ones) -> !both
    %start = "warp.map"() ({{
    ^bb0(%i: index, %j: index):
      "warp.yield"(%zero) {{operandSegmentSizes = array<i32: 1, 0, 0>}} : (f32) -> ()
    }}) {{reductions = [""], shape = array<i64: 64, 72>, resultSegmentSizes = array<i32: 1, 0, 0>}} : () -> !acc
    %sums = "warp.each_warp"() ({{
      %s = "warp.mma"(%start, %left, %wide) {{transpose_a = false, transpose_b = false}} : (!acc, !half, !both) -> !acc
      "warp.yield"(%s) {{operandSegmentSizes = array<i32: 1, 0, 0>}} : (!acc) -> ()
    }}) {{resultSegmentSizes = array<i32: 1, 0, 0>}} : () -> !acc
    "warp.store"(%sums, %o, %c0, %c0, %c0) : (!acc, !out, index, index, index) -> ()
  }}) {ROLE}
}}) {LAUNCH}
"""


def run(text: str, arguments: list[np.ndarray], blocks: int) -> None:
    """Runs a kernel in its schedules; each begins with the same arguments, of which the last one's results stay."""
    context = loaded_context()
    with context:
        module = ir.Module.parse(TYPES + text)
        (kernel,) = kernels_of(module)
        given, read = [a.copy() for a in arguments], read_kernel(kernel)
        for schedule in schedules_of(kernel).values():
            for to, begin in zip(arguments, given, strict=True):
                to[...] = begin
            run_scheduled(read, arguments, schedule, blocks)


def test_additions_in_order() -> None:
    sums = np.zeros((1, 1, 70))
    run(ORDERED, [sums, np.zeros(1, np.int64)], 4)
    assert (sums[0, 0] == [10.0] * 64 + [0.0] * 6).all()


@pytest.mark.parametrize("lost", ["order_wait", "order_pass"])
def test_additions_out_of_order_are_found(lost: str) -> None:
    lines = ["%none = arith.constant 0 : index" if f"warp.{lost}" in line else line for line in ORDERED.splitlines()]
    with pytest.raises(Fault, match="deadlock" if lost == "order_pass" else "is not ordered behind"):
        run("\n".join(lines), [np.zeros((1, 1, 64)), np.zeros(1, np.int64)], 4)


def test_atomic_additions_need_no_order_among_themselves() -> None:
    """Every head is a tile of one block, which block that is depends on the schedule."""
    sums = np.zeros((1, 5, 64))
    run(COUNTED, [sums, np.zeros(1, np.int64)], 3)
    assert (sums == 1.0).all()


def test_message_is_overwritten_before_all_have_read_it() -> None:
    first, second = COUNTED.split('"warp.named_sync"(%c8) {threads = 128} : (index) -> ()\n', 1)
    with pytest.raises(Fault, match="overwritten while read"):
        run(first + second, [np.zeros((1, 5, 64)), np.zeros(1, np.int64)], 2)


def test_loads_through_registers_and_products_of_warps() -> None:
    draw = np.random.default_rng(0)
    q, k = (draw.standard_normal((1, 1, 60, 64)).astype(np.float16).astype(np.float64) for _ in range(2))
    o = np.full((1, 1, 60, 72), np.nan)
    run(STAGED, [q, k, o], 1)
    b = np.concatenate([np.pad(k[0, 0], ((0, 4), (0, 0))), np.ones((64, 8))], axis=1)
    np.testing.assert_allclose(o[0, 0], q[0, 0] @ b[:64], rtol=0, atol=1e-4)


def test_load_that_is_not_waited_for() -> None:
    with pytest.raises(Fault, match="load in flight"):
        run(STAGED.replace("pending = 0", "pending = 1"), [np.zeros((1, 1, 64, 64))] * 2 + [np.zeros((1, 1, 64, 72))], 1)


def test_warps_read_what_others_have_not_written_yet() -> None:
    """Each warp multiplies its rows by all of b."""
    text = STAGED.replace('"warp.named_sync"(%c8) {threads = 128} : (index) -> ()\n', "")
    with pytest.raises(Fault, match="read before full"):
        run(text, [np.zeros((1, 1, 64, 64))] * 2 + [np.zeros((1, 1, 64, 72))], 1)


REACHES = f"""
"warp.kernel"() ({{
^bb0(%out: !sums):
  %c0 = arith.constant 0 : index
  %first = arith.constant VALUE : f16
  %one = arith.constant 1.0 : f32
  %two = arith.constant 2.0 : f32
  "warp.role"() ({{
  ^bb0(%w: index):
    %x = "warp.map"() ({{
    ^bb0(%i: index, %j: index):
      "warp.yield"(%first) {{operandSegmentSizes = array<i32: 1, 0, 0>}} : (f16) -> ()
    }}) {{reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>}} : () -> !half
    %told = "warp.each_warp"() ({{
      %some = "warp.reaches"(%x) {{limit = 4.0 : f16}} : (!half) -> i1
      %rows = "warp.map"() ({{
      ^bb0(%i: index):
        %y = arith.select %some, %two, %one : f32
        "warp.yield"(%y) {{operandSegmentSizes = array<i32: 1, 0, 0>}} : (f32) -> ()
      }}) {{reductions = [""], shape = array<i64: 64>, resultSegmentSizes = array<i32: 1, 0, 0>}} : () -> !rows
      "warp.yield"(%rows) {{operandSegmentSizes = array<i32: 1, 0, 0>}} : (!rows) -> ()
    }}) {{resultSegmentSizes = array<i32: 1, 0, 0>}} : () -> !rows
    "warp.store"(%told, %out, %c0, %c0, %c0) : (!rows, !sums, index, index, index) -> ()
  }}) {ROLE}
}}) {LAUNCH}
"""


@pytest.mark.parametrize(("value", "told"), [("3.99", 1.0), ("4.0", 2.0), ("0x7C00", 2.0), ("0x7E00", 2.0), ("0.0", 1.0)])
def test_elements_reach_a_limit(value: str, told: float) -> None:
    """Infinity and NaN do."""
    out = np.full((1, 1, 64), np.nan)
    run(REACHES.replace("VALUE", value), [out], 1)
    assert np.all(out == told)


def test_negative_elements_have_no_order_of_bits() -> None:
    with pytest.raises(Fault, match="negative element"):
        run(REACHES.replace("VALUE", "-1.0"), [np.full((1, 1, 64), np.nan)], 1)
