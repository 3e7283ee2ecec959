// What the first warpgroup of the consumers alone multiplies becomes a role of its own; the weights become a ring that consumers fill.
// RUN: attn-opt %s --split-input-file -p 'warp-specialize-sums,canonicalize,cse' | FileCheck %s
// RUN: attn-opt %s --split-input-file -p 'warp-specialize-sums,warp-stage-stores,warp-pipeline-exchange,canonicalize,cse' | FileCheck %s --check-prefix=STAGES

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!half = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!both = memref<128x64xf16, #warp.shared<128 : i64>>
!all = memref<1x128x64xf16, #warp.shared<128 : i64>>
!full = !warp.barrier<1 : i64, 1 : i64>
!free = !warp.barrier<1 : i64, 8 : i64>
!sums = memref<?x?x?x?x64xf32, strided<[?, ?, ?, ?, ?]>>

// Keys are given back by the new role, too.
// CHECK: %[[K_FREE:.*]] = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 12 : i64>
// CHECK: %[[FULL:.*]] = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 8 : i64>
// CHECK: %[[FREE:.*]] = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 4 : i64>
// CHECK: sym_name = "producer"
// CHECK-NOT: "warp.named_sync"
// CHECK: %[[PHASE:.*]] = arith.xori
// CHECK-NEXT: "warp.wait"(%[[FREE]], %{{.*}}, %[[PHASE]])
// CHECK-NEXT: "warp.write"
// CHECK-NEXT: "warp.fence_async"
// CHECK-NEXT: "warp.arrive"(%[[FULL]]
// CHECK-NOT: "warp.mma_async"
// CHECK: }) {registers = 200 : i64, sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64}
// CHECK: "warp.wait"(%[[FULL]]
// CHECK: "warp.mma_async"
// CHECK: "warp.mma_wait"
// CHECK-NEXT: "warp.arrive"(%[[FREE]]
// CHECK-NEXT: "warp.atomic_add"
// CHECK: "warp.arrive"(%[[K_FREE]]
// CHECK: }) {registers = 88 : i64, sym_name = "sums", warpgroups = 1 : i64, warps = 4 : i64}
// CHECK: registers = 128

// STAGES: "warp.alloc"() : () -> memref<2x128x64xf16
// STAGES: sym_name = "consumer"
// STAGES: "warp.alloc"() : () -> memref<1x64x64xf32
// STAGES: "warp.store_wait"() {pending = 0 : i64, read = true}
// STAGES: "warp.add_async"
// STAGES: "warp.store_wait"() {pending = 0 : i64, read = false}
"warp.kernel"() ({
^bb0(%n: index, %dq: !sums):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c12 = arith.constant 12 : index
  %c64 = arith.constant 64 : index
  %false = arith.constant false
  %keys = "warp.alloc"() : () -> !all
  %k_full = "warp.mbarrier"() : () -> !full
  %k_free = "warp.mbarrier"() : () -> !free
  %weights = "warp.alloc"() : () -> !all
  "warp.role"() ({
  ^bb0(%w: index):
    "warp.wait"(%k_free, %c0, %c1) : (!free, index, index) -> ()
  }) {sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64, registers = 24 : i64} : () -> ()
  "warp.role"() ({
  ^bb0(%w: index):
    %p = ub.poison : !half
    %first = arith.muli %w, %c64 : index
    %leads = arith.cmpi eq, %w, %c0 : index
    %stage, %phase = "warp.stage"(%n) {stages = 1 : i64} : (index) -> (index, index)
    %k = "warp.view"(%keys, %stage, %c0, %c0) : (!all, index, index, index) -> !both
    "warp.wait"(%k_full, %stage, %phase) : (!full, index, index) -> ()
    %end = scf.for %m = %c0 to %n step %c1 iter_args(%count = %c0) -> (index) {
      %q_stage, %q_phase = "warp.stage"(%count) {stages = 1 : i64} : (index) -> (index, index)
      "warp.wait"(%k_full, %q_stage, %q_phase) : (!full, index, index) -> ()
      %own = "warp.view"(%weights, %c0, %first, %c0) : (!all, index, index, index) -> !tile
      "warp.named_sync"(%c12) {threads = 256 : i64} : (index) -> ()
      "warp.write"(%p, %own) : (!half, !tile) -> ()
      "warp.fence_async"() : () -> ()
      "warp.named_sync"(%c12) {threads = 256 : i64} : (index) -> ()
      scf.if %leads {
        %x = "warp.view"(%weights, %c0, %c0, %c0) : (!all, index, index, index) -> !both
        %r = "warp.registers"() : () -> !acc
        "warp.mma_begin"() : () -> ()
        %f = "warp.mma_async"(%r, %x, %k, %false) {transpose_a = true, transpose_b = false} : (!acc, !both, !both, i1) -> !warp.pending<!acc>
        "warp.mma_commit"() : () -> ()
        %s = "warp.mma_wait"(%f) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
        "warp.atomic_add"(%s, %dq, %c0, %c0, %m, %c0) {ordered = false} : (!acc, !sums, index, index, index, index) -> ()
      }
      %next = arith.addi %count, %c1 : index
      scf.yield %next : index
    }
    "warp.arrive"(%k_free, %stage) : (!free, index) -> ()
  }) {sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64, registers = 240 : i64} : () -> ()
}) {sym_name = "kernel", function = "f", registers = 168 : i64, lanes = 32 : i64, register_file = 65536 : i64, shared_limit = 232448 : i64} : () -> ()

// -----

// CHECK: "warp.kernel"
// CHECK: warp.refused = {"warp-specialize-sums" = "no product is one warpgroup's alone"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64, registers = 24 : i64} : () -> ()
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64, registers = 240 : i64} : () -> ()
}) {sym_name = "kernel", function = "f", registers = 168 : i64, lanes = 32 : i64, register_file = 65536 : i64, shared_limit = 232448 : i64} : () -> ()
