// What a map of the first product needs of its column is read before the wait for that product, and so is the same number of a later map.
// RUN: attn-opt %s --split-input-file -p 'warp-read-early' | FileCheck %s

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>
!numbers = memref<1x64xf32, #warp.shared<0 : i64>>

// CHECK: %[[FLYING:.*]] = "warp.mma_async"
// CHECK: %[[EARLY:.*]] = "warp.map"
// CHECK-NEXT: ^bb0(%{{.*}}: index, %[[J:.*]]: index):
// CHECK-NEXT: %[[LSE:.*]] = memref.load %{{.*}}[%{{.*}}, %[[J]]]
// CHECK-NEXT: %[[TERM:.*]] = arith.mulf %[[LSE]],
// CHECK-NEXT: "warp.yield"(%[[TERM]])
// CHECK: %[[S:.*]] = "warp.mma_wait"(%[[FLYING]])
// CHECK: "warp.map"
// CHECK: tensor.extract %[[S]]
// CHECK: %[[READ:.*]] = tensor.extract %[[EARLY]]
// CHECK-NOT: memref.load
// CHECK: arith.addf %{{.*}}, %[[READ]]
// CHECK: %[[T:.*]] = "warp.mma_wait"
// CHECK: "warp.map"
// CHECK: tensor.extract %[[T]]
// CHECK-NEXT: %[[AGAIN:.*]] = tensor.extract %[[EARLY]]
// CHECK-NEXT: arith.mulf %{{.*}}, %[[AGAIN]]
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %false = arith.constant false
  %two = arith.constant 2.0 : f32
  %k_buffer = "warp.alloc"() : () -> !ring
  %lse = "warp.alloc"() : () -> !numbers
  "warp.role"() ({
  ^bb0(%w: index):
    %start = ub.poison : !acc
    %k = "warp.view"(%k_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    %end = scf.for %m = %c0 to %n step %c1 iter_args(%sum = %start) -> (!acc) {
      %r0 = "warp.registers"() : () -> !acc
      %s0 = "warp.mma_async"(%r0, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %s = "warp.mma_wait"(%s0) {pending = 0} : (!warp.pending<!acc>) -> !acc
      %p = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %a = tensor.extract %s[%i, %j] : !acc
        %b = memref.load %lse[%c0, %j] : !numbers
        %c = arith.mulf %b, %two : f32
        %d = arith.addf %a, %c : f32
        "warp.yield"(%d) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> !acc
      %r1 = "warp.registers"() : () -> !acc
      %t0 = "warp.mma_async"(%r1, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %t = "warp.mma_wait"(%t0) {pending = 0} : (!warp.pending<!acc>) -> !acc
      %q = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %a = tensor.extract %t[%i, %j] : !acc
        %b = memref.load %lse[%c0, %j] : !numbers
        %c = arith.mulf %b, %two : f32
        %d = arith.mulf %a, %c : f32
        "warp.yield"(%d) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> !acc
      scf.yield %q : !acc
    }
  }) {registers = 240 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 248 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {early = 1 : i64}} : () -> ()

// -----

// CHECK: warp.refused = {"warp-read-early" = "the schedule reads numbers of columns where they are needed"}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
    "warp.fence_async"() : () -> ()
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
