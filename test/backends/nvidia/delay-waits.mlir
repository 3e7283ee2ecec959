// Products fly until something needs them; what gives their stages back waits with them.
// RUN: attn-opt %s --split-input-file -p 'warp-delay-waits' | FileCheck %s

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!half = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>
!free = !warp.barrier<1 : i64, 4 : i64>

// CHECK: scf.for
// CHECK: %[[S:.*]] = "warp.mma_async"
// CHECK-NEXT: "warp.mma_commit"
// The stage of the first product's tile is waited for behind it: nothing is given back before.
// CHECK-NEXT: "warp.wait"
// CHECK: %[[T:.*]] = "warp.mma_async"
// CHECK-NEXT: "warp.mma_commit"
// CHECK-NEXT: %{{.*}} = "warp.mma_wait"(%[[S]]) {pending = 1 : i64}
// CHECK-NEXT: %{{.*}} = "warp.mma_wait"(%[[T]]) {pending = 0 : i64}
// CHECK-NEXT: "warp.arrive"
// CHECK-NEXT: %[[P:.*]] = "warp.map"
// CHECK: %[[U:.*]] = "warp.mma_async"(%{{.*}}, %[[P]], %[[V:[a-z0-9_]+]], %true)
// CHECK-NEXT: "warp.mma_commit"
// The next op writes what this product does not read.
// CHECK-NEXT: "warp.write"(%[[P]], %[[EXCHANGED:[a-z0-9_]+]])
// CHECK-NEXT: "warp.named_sync"
// CHECK: %{{.*}} = "warp.mma_async"(%{{.*}}, %[[EXCHANGED]], %[[V]], %false)
// CHECK-NEXT: "warp.mma_commit"
// CHECK-NEXT: %{{.*}} = "warp.mma_wait"(%[[U]]) {pending = 1 : i64}
// CHECK-NEXT: "warp.arrive"
// That one reads memory which is written before all have met.
// CHECK-NEXT: %{{.*}} = "warp.mma_wait"(%{{.*}}) {pending = 0 : i64}
// CHECK-NEXT: "warp.named_sync"
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %true = arith.constant true
  %false = arith.constant false
  %k_buffer = "warp.alloc"() : () -> !ring
  %weights = "warp.alloc"() : () -> !ring
  %k_free = "warp.mbarrier"() : () -> !free
  "warp.role"() ({
  ^bb0(%w: index):
    %start = ub.poison : !acc
    %k = "warp.view"(%k_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    %x = "warp.view"(%weights, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    scf.for %m = %c0 to %n step %c1 iter_args(%sum = %start) -> (!acc) {
      %r0 = "warp.registers"() : () -> !acc
      %s0 = "warp.mma_async"(%r0, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %s = "warp.mma_wait"(%s0) {pending = 0} : (!warp.pending<!acc>) -> !acc
      "warp.wait"(%k_free, %c0, %c0) : (!free, index, index) -> ()
      %r1 = "warp.registers"() : () -> !acc
      %t0 = "warp.mma_async"(%r1, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %t = "warp.mma_wait"(%t0) {pending = 0} : (!warp.pending<!acc>) -> !acc
      "warp.arrive"(%k_free, %c0) : (!free, index) -> ()
      %p = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %a = tensor.extract %s[%i, %j] : !acc
        %b = tensor.extract %t[%i, %j] : !acc
        %c = arith.mulf %a, %b : f32
        %d = arith.truncf %c : f32 to f16
        "warp.yield"(%d) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f16) -> ()
      }) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> !half
      "warp.mma_begin"() : () -> ()
      %u0 = "warp.mma_async"(%sum, %p, %k, %true) {transpose_a = false, transpose_b = false} : (!acc, !half, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %u = "warp.mma_wait"(%u0) {pending = 0} : (!warp.pending<!acc>) -> !acc
      "warp.arrive"(%k_free, %c0) : (!free, index) -> ()
      "warp.write"(%p, %x) : (!half, !tile) -> ()
      "warp.named_sync"(%c1) {threads = 128} : (index) -> ()
      %r2 = "warp.registers"() : () -> !acc
      %v0 = "warp.mma_async"(%r2, %x, %k, %false) {transpose_a = true, transpose_b = false} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %v = "warp.mma_wait"(%v0) {pending = 0} : (!warp.pending<!acc>) -> !acc
      "warp.named_sync"(%c1) {threads = 128} : (index) -> ()
      scf.yield %u : !acc
    }
  }) {registers = 240 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 248 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-delay-waits" = "no loop multiplies"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!ring = memref<2x64x64xf16, #warp.shared<128 : i64>>
!free = !warp.barrier<2 : i64, 4 : i64>

// A stage that is given back in a condition is read until then: one of the next iteration's is not.
// CHECK: scf.for
// CHECK: %[[S:.*]] = "warp.mma_async"
// CHECK: %[[T:.*]] = "warp.mma_async"
// CHECK-NEXT: "warp.mma_commit"
// CHECK-NEXT: %{{.*}} = "warp.mma_wait"(%[[S]]) {pending = 1 : i64}
// CHECK-NEXT: scf.if
// CHECK-NEXT: "warp.arrive"(%{{.*}}, %c1)
// CHECK: %{{.*}} = "warp.mma_wait"(%[[T]]) {pending = 0 : i64}
// CHECK-NEXT: scf.if
// CHECK-NEXT: "warp.arrive"(%{{.*}}, %c0)
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %false = arith.constant false
  %buffer = "warp.alloc"() : () -> !ring
  %free = "warp.mbarrier"() : () -> !free
  "warp.role"() ({
  ^bb0(%w: index):
    %k = "warp.view"(%buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    %other = "warp.view"(%buffer, %c1, %c0, %c0) : (!ring, index, index, index) -> !tile
    scf.for %m = %c0 to %n step %c1 {
      %some = arith.cmpi eq, %m, %c0 : index
      %r0 = "warp.registers"() : () -> !acc
      %s0 = "warp.mma_async"(%r0, %other, %other, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %s = "warp.mma_wait"(%s0) {pending = 0} : (!warp.pending<!acc>) -> !acc
      %r1 = "warp.registers"() : () -> !acc
      %t0 = "warp.mma_async"(%r1, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %t = "warp.mma_wait"(%t0) {pending = 0} : (!warp.pending<!acc>) -> !acc
      scf.if %some {
        "warp.arrive"(%free, %c1) : (!free, index) -> ()
      }
      scf.if %some {
        "warp.arrive"(%free, %c0) : (!free, index) -> ()
      }
    }
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
