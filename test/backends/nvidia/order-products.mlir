// A sum that nothing reads in its iteration is multiplied behind the product whose result leaves; what it reads is given back behind it.
// RUN: attn-opt %s --split-input-file -p 'warp-order-products' | FileCheck %s
// RUN: attn-opt %s --split-input-file -p 'warp-order-products,warp-delay-waits' | FileCheck %s --check-prefix=WAITS

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!half = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>
!free = !warp.barrier<1 : i64, 4 : i64>

// CHECK: scf.for %{{.*}} iter_args(%[[SUM:.*]] = %{{.*}})
// CHECK: %[[OUT:.*]] = "warp.mma_wait"
// CHECK-NEXT: "warp.mma_begin"
// CHECK-NEXT: %[[MORE:.*]] = "warp.mma_async"(%[[SUM]]
// CHECK-NEXT: "warp.mma_commit"
// CHECK-NEXT: %[[NEXT:.*]] = "warp.mma_wait"(%[[MORE]]) {pending = 0 : i64}
// CHECK-NEXT: "warp.arrive"
// CHECK-NEXT: "warp.atomic_add"(%[[OUT]]
// CHECK-NEXT: scf.yield %[[NEXT]]
// WAITS: %[[OUT:.*]] = "warp.mma_wait"(%{{.*}}) {pending = 1 : i64}
// WAITS-NEXT: "warp.atomic_add"(%[[OUT]]
// WAITS-NEXT: %[[NEXT:.*]] = "warp.mma_wait"(%{{.*}}) {pending = 0 : i64}
// WAITS-NEXT: "warp.arrive"
// WAITS-NEXT: scf.yield %[[NEXT]]
"warp.kernel"() ({
^bb0(%dq: memref<?x?x?x64xf32>, %n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %true = arith.constant true
  %false = arith.constant false
  %q_buffer = "warp.alloc"() : () -> !ring
  %weights = "warp.alloc"() : () -> !ring
  %q_free = "warp.mbarrier"() : () -> !free
  "warp.role"() ({
  ^bb0(%w: index):
    %start = ub.poison : !acc
    %p = ub.poison : !half
    %q = "warp.view"(%q_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    %x = "warp.view"(%weights, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    scf.for %m = %c0 to %n step %c1 iter_args(%sum = %start) -> (!acc) {
      "warp.mma_begin"() : () -> ()
      %s0 = "warp.mma_async"(%sum, %p, %q, %true) {transpose_a = false, transpose_b = false} : (!acc, !half, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %s = "warp.mma_wait"(%s0) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
      "warp.arrive"(%q_free, %c0) : (!free, index) -> ()
      %r = "warp.registers"() : () -> !acc
      "warp.mma_begin"() : () -> ()
      %t0 = "warp.mma_async"(%r, %x, %x, %false) {transpose_a = true, transpose_b = false} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %t = "warp.mma_wait"(%t0) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
      "warp.atomic_add"(%t, %dq, %c0, %c0, %m, %c0) {ordered = false} : (!acc, memref<?x?x?x64xf32>, index, index, index, index) -> ()
      scf.yield %s : !acc
    }
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-order-products" = "no loop adds a product to global memory"}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
    "warp.fence_async"() : () -> ()
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
