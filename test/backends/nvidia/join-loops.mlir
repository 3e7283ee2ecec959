// Loops over whole blocks and over those that a mask cuts become one; what differs stands in a condition.
// RUN: attn-opt %s --split-input-file -p 'warp-join-loops,cse' | FileCheck %s

#smem = #warp.shared<128 : i64>
!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!parts = tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
!tile = memref<64x64xf16, #smem>
!ring = memref<1x64x64xf16, #smem>

// CHECK: %[[WHOLE:.*]] = arith.ceildivsi %{{.*}}, %c64
// CHECK: %[[ALL:.*]] = arith.addi %[[WHOLE]], %{{.*}}
// CHECK-NEXT: scf.for %[[NUMBER:.*]] = %c0 to %[[ALL]] step %c1 iter_args(
// CHECK: %[[IS_WHOLE:.*]] = arith.cmpi slt, %[[NUMBER]], %[[WHOLE]]
// CHECK: %[[INDEX:.*]] = arith.select %[[IS_WHOLE]], %{{.*}}, %{{.*}} : index
// CHECK: "warp.mma_async"
// CHECK: %[[SCORES:.*]] = "warp.mma_wait"
// CHECK-NOT: "warp.mma_async"
// CHECK: %[[CUT:.*]] = arith.select %[[IS_WHOLE]], %false{{.*}}, %true{{.*}} : i1
// CHECK-NEXT: %[[CHOSEN:.*]]:2 = scf.if %[[CUT]]
// CHECK: arith.addi %[[INDEX]], %{{.*}}
// CHECK: } else {
// CHECK: %[[PARTS:.*]] = "warp.map"
// The tile that only one of the maps makes is the one that the other reads.
// CHECK: scf.yield %[[SCORES]], %[[PARTS]]
// CHECK: tensor.extract %[[CHOSEN]]#1
// CHECK: scf.yield %{{.*}}, %[[CHOSEN]]#0
// CHECK-NOT: scf.for
// CHECK: sym_name = "f"} : () -> ()
"warp.kernel"() ({
^bb0(%m: index, %n: index):
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %low = arith.constant -1.0 : f32
  %false = arith.constant false
  %keys = "warp.alloc"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
    %k = "warp.view"(%keys, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    %start = ub.poison : !parts
    %none = ub.poison : !acc
    %0:2 = scf.for %i0 = %c0 to %m step %c64 iter_args(%best = %start, %tile = %none) -> (!parts, !acc) {
      %r = "warp.registers"() : () -> !acc
      "warp.mma_begin"() : () -> ()
      %1 = "warp.mma_async"(%r, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %s = "warp.mma_wait"(%1) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
      %p = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %x = tensor.extract %s[%i, %j] : !acc
        "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !parts
      %q = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %x = tensor.extract %p[%i, %j] : !parts
        %y = tensor.extract %best[%i, %j] : !parts
        %z = arith.maximumf %x, %y : f32
        "warp.yield"(%z) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 4>} : () -> !parts
      scf.yield %q, %s : !parts, !acc
    }
    %last = arith.addi %m, %c64 : index
    %2:2 = scf.for %i1 = %last to %n step %c64 iter_args(%best = %0#0, %tile = %0#1) -> (!parts, !acc) {
      %r = "warp.registers"() : () -> !acc
      "warp.mma_begin"() : () -> ()
      %3 = "warp.mma_async"(%r, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %s = "warp.mma_wait"(%3) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
      %t, %p = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %x = tensor.extract %s[%i, %j] : !acc
        %at = arith.addi %i1, %j : index
        %some = arith.cmpi slt, %at, %n : index
        %y = arith.select %some, %x, %low : f32
        "warp.yield"(%y, %y) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f32, f32) -> ()
      }) {reductions = ["", "max"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 64>} : () -> (!acc, !parts)
      %q = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %x = tensor.extract %p[%i, %j] : !parts
        %y = tensor.extract %best[%i, %j] : !parts
        %z = arith.maximumf %x, %y : f32
        "warp.yield"(%z) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 4>} : () -> !parts
      scf.yield %q, %t : !parts, !acc
    }
    %used = "warp.reduce"(%2#0) {kind = "max"} : (!parts) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
  }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-join-loops" = "no loops follow each other"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// Ops that not all bodies have, and that are no maps, are not joined.
// CHECK: warp.refused = {"warp-join-loops" = "bodies of loops that follow each other differ in more than maps of two forms: warp.mma_begin, warp.mma_commit"}
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  "warp.role"() ({
  ^bb0(%w: index):
    %0 = scf.for %i = %c0 to %n step %c1 iter_args(%x = %c0) -> (index) {
      "warp.mma_begin"() : () -> ()
      scf.yield %x : index
    }
    %1 = scf.for %i = %n to %n step %c1 iter_args(%x = %0) -> (index) {
      "warp.mma_commit"() : () -> ()
      scf.yield %x : index
    }
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
