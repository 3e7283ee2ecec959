// Where all warps copy, each warpgroup copies its share of the numbers of rows, too, in the same group; copies ahead take them along.
// RUN: attn-opt %s --split-input-file -p 'warp-stage-rows' | FileCheck %s
// RUN: attn-opt %s --split-input-file -p 'warp-stage-rows,warp-prefetch-loads' | FileCheck %s --check-prefix=AHEAD

!heads = memref<?x?x?x64xf16>
!numbers = memref<?x?x?xf32>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>
!share = memref<32x64xf16, #warp.shared<128 : i64>>
!acc = tensor<64x64xf32, #warp.layout<"mma16", "tile">>

// CHECK: ^bb0(%[[Q:.*]]: memref<?x?x?x64xf16>, %[[LSE:.*]]: memref<?x?x?xf32>, %[[N:.*]]: index):
// CHECK: %[[NUMBERS:.*]] = "warp.alloc"() : () -> memref<1x64xf32, #warp.shared<0 : i64>>
// CHECK: "warp.copy_lanes_async"(%[[Q]], %c0, %c0, %[[ROW:.*]], %c0,
// CHECK-NEXT: "warp.copy_rows_lanes_async"(%[[LSE]], %c0, %c0, %[[ROW]], %[[NUMBERS]], %[[STAGE:.*]]#0, %[[FIRST:.*]]) {count = 32 : i64}
// CHECK-NEXT: "warp.copy_commit"()
// CHECK: "warp.map"
// CHECK-NEXT: ^bb0(%{{.*}}: index, %[[J:.*]]: index):
// CHECK-NOT: memref.load %[[LSE]]
// CHECK: memref.load %[[NUMBERS]][%[[STAGE]]#0, %[[J]]]
// AHEAD: "warp.alloc"() : () -> memref<2x64xf32, #warp.shared<0 : i64>>
// AHEAD: "warp.copy_rows_lanes_async"
// AHEAD: "warp.copy_wait"() {pending = 0 : i64}
// AHEAD-NEXT: "warp.named_sync"
// AHEAD: scf.if
// AHEAD: "warp.copy_rows_lanes_async"
// AHEAD: "warp.map"
"warp.kernel"() ({
^bb0(%q: !heads, %lse: !numbers, %n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %buffer = "warp.alloc"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %tile = %c0 to %n step %c1 iter_args(%all = %c0) -> (index) {
      %counted = scf.for %row = %c0 to %n step %c64 iter_args(%count = %all) -> (index) {
        %stage, %phase = "warp.stage"(%count) {stages = 1 : i64} : (index) -> (index, index)
        %first = arith.muli %w, %c32 : index
        %share = "warp.view"(%buffer, %stage, %first, %c0) : (!ring, index, index, index) -> !share
        %own = arith.addi %row, %first : index
        "warp.named_sync"(%c1) {threads = 256 : i64} : (index) -> ()
        "warp.copy_lanes_async"(%q, %c0, %c0, %own, %c0, %share) : (!heads, index, index, index, index, !share) -> ()
        "warp.copy_commit"() : () -> ()
        "warp.copy_wait"() {pending = 0 : i64} : () -> ()
        "warp.named_sync"(%c1) {threads = 256 : i64} : (index) -> ()
        %values = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          %at = arith.addi %row, %j : index
          %x = memref.load %lse[%c0, %c0, %at] : !numbers
          "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> !acc
        %next = arith.addi %count, %c1 : index
        scf.yield %next : index
      }
      scf.yield %counted : index
    }
  }) {registers = 128 : i64, sym_name = "all", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 166912 : i64, sym_name = "f",
    warp.schedule = {arch = "sm_80"}} : () -> ()

// -----

// A map that stands before the meeting behind the copies must not read what they bring.
// CHECK: memref.load %{{.*}}[%c0, %c0,
// CHECK: warp.refused = {"warp-stage-rows" = "no copy brings the tile of the rows whose numbers a map reads, and holds it meanwhile"}
"warp.kernel"() ({
^bb0(%q: memref<?x?x?x64xf16>, %lse: memref<?x?x?xf32>, %n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %buffer = "warp.alloc"() : () -> memref<1x64x64xf16, #warp.shared<128 : i64>>
  "warp.role"() ({
  ^bb0(%w: index):
    %share = "warp.view"(%buffer, %c0, %w, %c0) : (memref<1x64x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<32x64xf16, #warp.shared<128 : i64>>
    %own = arith.addi %n, %w : index
    "warp.copy_lanes_async"(%q, %c0, %c0, %own, %c0, %share) : (memref<?x?x?x64xf16>, index, index, index, index, memref<32x64xf16, #warp.shared<128 : i64>>) -> ()
    "warp.copy_commit"() : () -> ()
    "warp.copy_wait"() {pending = 0 : i64} : () -> ()
    %values = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %at = arith.addi %n, %j : index
      %x = memref.load %lse[%c0, %c0, %at] : memref<?x?x?xf32>
      "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64x64xf32, #warp.layout<"mma16", "tile">>
    "warp.named_sync"(%c1) {threads = 256 : i64} : (index) -> ()
  }) {registers = 128 : i64, sym_name = "all", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 166912 : i64, sym_name = "f",
    warp.schedule = {arch = "sm_80"}} : () -> ()

// -----

// Packed sequences: row T - n + i of the entry where a sequence of n rows ends, b + n, is row b + i of numbers that come as no view.
// CHECK: ^bb0(%{{.*}}: memref<?x?x?x64xf16>, %[[LSE:.*]]: memref<?x?x?xf32>, %[[BEGIN:.*]]: index, %{{.*}}: index):
// CHECK: %[[NUMBERS:.*]] = "warp.alloc"() : () -> memref<1x64xf32, #warp.shared<0 : i64>>
// CHECK: scf.for %[[ROW:.*]] = %c0
// CHECK: "warp.copy_lanes_async"
// CHECK: %[[IN:.*]] = arith.addi %[[BEGIN]], %[[ROW]] : index
// CHECK: %[[AT:.*]] = arith.addi %[[IN]], %[[FIRST:.*]] : index
// CHECK: "warp.copy_rows_lanes_async"(%[[LSE]], %c0{{.*}}, %c0, %[[AT]], %[[NUMBERS]], {{.*}}) {count = 32 : i64}
// CHECK: "warp.map"
// CHECK-NOT: memref.load %[[LSE]]
// CHECK: memref.load %[[NUMBERS]]
"warp.kernel"() ({
^bb0(%q: memref<?x?x?x64xf16>, %lse: memref<?x?x?xf32>, %begin: index, %n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %rows = memref.dim %q, %c2 : memref<?x?x?x64xf16>
  %entry = arith.addi %begin, %n : index
  %shift = arith.subi %rows, %n : index
  %buffer = "warp.alloc"() : () -> memref<1x64x64xf16, #warp.shared<128 : i64>>
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %row = %c0 to %n step %c64 {
      %first = arith.muli %w, %c32 : index
      %share = "warp.view"(%buffer, %c0, %first, %c0) : (memref<1x64x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<32x64xf16, #warp.shared<128 : i64>>
      %place = arith.addi %shift, %row : index
      %own = arith.addi %place, %first : index
      "warp.named_sync"(%c1) {threads = 256 : i64} : (index) -> ()
      "warp.copy_lanes_async"(%q, %entry, %c0, %own, %c0, %share) : (memref<?x?x?x64xf16>, index, index, index, index, memref<32x64xf16, #warp.shared<128 : i64>>) -> ()
      "warp.copy_commit"() : () -> ()
      "warp.copy_wait"() {pending = 0 : i64} : () -> ()
      "warp.named_sync"(%c1) {threads = 256 : i64} : (index) -> ()
      %values = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %position = arith.addi %row, %j : index
        %at = arith.addi %begin, %position : index
        %x = memref.load %lse[%c0, %c0, %at] : memref<?x?x?xf32>
        "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64x64xf32, #warp.layout<"mma16", "tile">>
    }
  }) {registers = 128 : i64, sym_name = "all", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 166912 : i64, sym_name = "f",
    warp.schedule = {arch = "sm_80"}} : () -> ()
