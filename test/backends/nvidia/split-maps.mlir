// What needs the first of two products only is a map of its own, before the wait for the second.
// RUN: attn-opt %s --split-input-file -p 'warp-split-maps' | FileCheck %s

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>

// CHECK: %[[S:.*]] = "warp.mma_wait"
// CHECK: %[[FLYING:.*]] = "warp.mma_async"
// CHECK-NEXT: "warp.mma_commit"
// CHECK-NEXT: %[[EARLY:.*]] = "warp.map"
// CHECK: %[[A:.*]] = tensor.extract %[[S]]
// CHECK-NEXT: %[[M:.*]] = arith.mulf %[[A]],
// CHECK-NEXT: %[[E:.*]] = math.exp2 %[[M]]
// CHECK-NEXT: "warp.yield"(%[[E]])
// CHECK: %[[T:.*]] = "warp.mma_wait"(%[[FLYING]])
// CHECK: "warp.map"
// CHECK: %[[B:.*]] = tensor.extract %[[T]]
// CHECK: %[[READ:.*]] = tensor.extract %[[EARLY]]
// CHECK: arith.mulf %[[READ]], %[[B]]
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %false = arith.constant false
  %two = arith.constant 2.0 : f32
  %k_buffer = "warp.alloc"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
    %start = ub.poison : !acc
    %k = "warp.view"(%k_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    %end = scf.for %m = %c0 to %n step %c1 iter_args(%sum = %start) -> (!acc) {
      %r0 = "warp.registers"() : () -> !acc
      %s0 = "warp.mma_async"(%r0, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %s = "warp.mma_wait"(%s0) {pending = 0} : (!warp.pending<!acc>) -> !acc
      %r1 = "warp.registers"() : () -> !acc
      %t0 = "warp.mma_async"(%r1, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %t = "warp.mma_wait"(%t0) {pending = 0} : (!warp.pending<!acc>) -> !acc
      %p = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %a = tensor.extract %s[%i, %j] : !acc
        %b = tensor.extract %t[%i, %j] : !acc
        %c = arith.mulf %a, %two : f32
        %e = math.exp2 %c : f32
        %d = arith.mulf %e, %b : f32
        "warp.yield"(%d) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> !acc
      scf.yield %p : !acc
    }
  }) {registers = 240 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 248 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// Results that each need one of the products are two maps, and numbers that are made late, of tensors that are only read, come first.

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!half = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>

// CHECK: ^bb0(%{{[^:]*}}: index, %[[NUMBERS:[^:]*]]: memref<?xf32>
// CHECK: %[[FLIES:.*]] = "warp.mma_async"
// CHECK-NEXT: "warp.mma_commit"
// CHECK-NEXT: %[[X:.*]] = memref.load %[[NUMBERS]]
// CHECK-NEXT: %[[S:.*]] = "warp.mma_wait"(%[[FLIES]])
// CHECK: %[[EARLY:.*]] = "warp.map"
// CHECK: %[[A:.*]] = tensor.extract %[[S]]
// CHECK-NEXT: %[[M:.*]] = arith.mulf %[[A]], %[[X]]
// CHECK-NEXT: %[[H:.*]] = arith.truncf %[[M]]
// CHECK-NEXT: "warp.yield"(%[[H]])
// CHECK: %[[T:.*]] = "warp.mma_wait"
// CHECK: %[[LATE:.*]] = "warp.map"
// CHECK: tensor.extract %[[T]]
// CHECK-NOT: tensor.extract %[[S]]
// CHECK: "warp.write"(%[[LATE]],
// CHECK-NEXT: "warp.write"(%[[EARLY]],
"warp.kernel"() ({
^bb0(%n: index, %numbers: memref<?xf32>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %false = arith.constant false
  %two = arith.constant 2.0 : f32
  %k_buffer = "warp.alloc"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
    %start = ub.poison : !acc
    %k = "warp.view"(%k_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    %end = scf.for %m = %c0 to %n step %c1 iter_args(%sum = %start) -> (!acc) {
      %r0 = "warp.registers"() : () -> !acc
      %s0 = "warp.mma_async"(%r0, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %s = "warp.mma_wait"(%s0) {pending = 0} : (!warp.pending<!acc>) -> !acc
      %r1 = "warp.registers"() : () -> !acc
      %t0 = "warp.mma_async"(%r1, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %t = "warp.mma_wait"(%t0) {pending = 0} : (!warp.pending<!acc>) -> !acc
      %x = memref.load %numbers[%c0] : memref<?xf32>
      %ds, %p = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %a = tensor.extract %s[%i, %j] : !acc
        %b = tensor.extract %t[%i, %j] : !acc
        %c = arith.mulf %a, %x : f32
        %d = arith.mulf %b, %x : f32
        %c16 = arith.truncf %c : f32 to f16
        %d16 = arith.truncf %d : f32 to f16
        "warp.yield"(%d16, %c16) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f16, f16) -> ()
      }) {reductions = ["", ""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 2, 0, 0>} : () -> (!half, !half)
      "warp.write"(%ds, %k) : (!half, !tile) -> ()
      "warp.write"(%p, %k) : (!half, !tile) -> ()
      scf.yield %sum : !acc
    }
  }) {registers = 240 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 248 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>

// CHECK: warp.refused = {"warp-split-maps" = "what a map needs of the first product is the product itself"}
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %false = arith.constant false
  %two = arith.constant 2.0 : f32
  %k_buffer = "warp.alloc"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
    %start = ub.poison : !acc
    %k = "warp.view"(%k_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    %end = scf.for %m = %c0 to %n step %c1 iter_args(%sum = %start) -> (!acc) {
      %r0 = "warp.registers"() : () -> !acc
      %s0 = "warp.mma_async"(%r0, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %s = "warp.mma_wait"(%s0) {pending = 0} : (!warp.pending<!acc>) -> !acc
      %r1 = "warp.registers"() : () -> !acc
      %t0 = "warp.mma_async"(%r1, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %t = "warp.mma_wait"(%t0) {pending = 0} : (!warp.pending<!acc>) -> !acc
      %p = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %a = tensor.extract %s[%i, %j] : !acc
        %b = tensor.extract %t[%i, %j] : !acc
        %d = arith.mulf %a, %b : f32
        "warp.yield"(%d) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> !acc
      scf.yield %p : !acc
    }
  }) {registers = 240 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 248 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-split-maps" = "no map reads the fragments of two products"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
