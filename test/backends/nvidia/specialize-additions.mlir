// What a warpgroup writes is added by a warp of the producer's warpgroup: the warpgroup waits for its buffer, tells the warp, and goes on.
// RUN: attn-opt %s --split-input-file -p 'warp-specialize-additions' | FileCheck %s

!sums = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf32, #warp.shared<128 : i64>>
!buffer = memref<1x128x64xf32, #warp.shared<128 : i64>>
!dq = memref<?x?x?x?x64xf32>
!counters = memref<?xi32>
!ring = !warp.barrier<2 : i64, 1 : i64>

// CHECK: %[[FREE:sums_free]] = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 1 : i64>
// CHECK: %[[BUFFER:.*]] = "warp.alloc"()
// CHECK: sym_name = "producer"
// The warps go through the same iterations.
// CHECK: ^bb0(%[[UNIT:.*]]: index):
// CHECK-NEXT: scf.for
// CHECK: "warp.order_now"
// CHECK: %[[VIEW:.*]] = "warp.view"(%[[BUFFER]],
// CHECK: "warp.named_sync"(%{{.*}}) {threads = 160 : i64}
// CHECK-NEXT: "warp.elect"
// CHECK-NEXT: "warp.add_async"(%[[VIEW]],
// CHECK-NEXT: "warp.store_commit"
// CHECK-NEXT: "warp.store_wait"() {pending = 0 : i64, read = true}
// CHECK-NEXT: "warp.arrive"(%[[FREE]], %[[UNIT]])
// CHECK: "warp.store_wait"() {pending = 0 : i64, read = false}
// CHECK: first_warp = 1 : i64, registers = 24 : i64, sym_name = "additions", warpgroups = 2 : i64, warps = 1 : i64
// CHECK: ^bb0(%[[W:.*]]: index):
// CHECK: scf.for
// CHECK-NOT: "warp.order_now"
// CHECK: %[[BEFORE:.*]] = arith.xori
// CHECK: "warp.wait"(%[[FREE]], %[[W]], %[[BEFORE]])
// CHECK-NEXT: "warp.write"
// CHECK-NEXT: "warp.fence_async"
// CHECK-NEXT: "warp.named_arrive"(%{{.*}}) {threads = 160 : i64}
// CHECK-NOT: "warp.add_async"
// CHECK: sym_name = "consumer"
"warp.kernel"() ({
^bb0(%dq: !dq, %n: index, %counters: !counters):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  %q_full = "warp.mbarrier"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 24 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64} : () -> ()
  %buffer = "warp.alloc"() : () -> !buffer
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %m = %c0 to %n step %c1 {
      %stage, %phase = "warp.stage"(%m) {stages = 2 : i64} : (index) -> (index, index)
      "warp.wait"(%q_full, %stage, %phase) : (!ring, index, index) -> ()
      %now = "warp.order_now"(%counters, %m) : (!counters, index) -> index
      %sum = ub.poison : !sums
      %first = arith.muli %w, %c64 : index
      %view = "warp.view"(%buffer, %c0, %first, %c0) : (!buffer, index, index, index) -> !tile
      "warp.elect"() ({
        "warp.store_wait"() {pending = 0 : i64, read = true} : () -> ()
      }) : () -> ()
      "warp.named_sync"(%w) {threads = 128 : i64} : (index) -> ()
      "warp.write"(%sum, %view) : (!sums, !tile) -> ()
      "warp.fence_async"() : () -> ()
      "warp.named_sync"(%w) {threads = 128 : i64} : (index) -> ()
      "warp.elect"() ({
        "warp.add_async"(%view, %dq, %c0, %c0, %m, %c0) {ordered = false} : (!tile, !dq, index, index, index, index) -> ()
        "warp.store_commit"() : () -> ()
      }) : () -> ()
    }
  }) {registers = 240 : i64, sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {reduction_warps = 1 : i64}} : () -> ()

// -----

!sums = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf32, #warp.shared<128 : i64>>
!buffer = memref<1x128x64xf32, #warp.shared<128 : i64>>
!dq = memref<?x?x?x?x64xf32>
!counters = memref<?xi32>
!ring = !warp.barrier<2 : i64, 1 : i64>

// CHECK: warp.refused = {"warp-specialize-additions" = "the producer's warpgroup has no 2 idle warps"}
"warp.kernel"() ({
^bb0(%dq: !dq, %n: index, %counters: !counters):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  %q_full = "warp.mbarrier"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 24 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
  %buffer = "warp.alloc"() : () -> !buffer
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %m = %c0 to %n step %c1 {
      %stage, %phase = "warp.stage"(%m) {stages = 2 : i64} : (index) -> (index, index)
      "warp.wait"(%q_full, %stage, %phase) : (!ring, index, index) -> ()
      %now = "warp.order_now"(%counters, %m) : (!counters, index) -> index
      %sum = ub.poison : !sums
      %first = arith.muli %w, %c64 : index
      %view = "warp.view"(%buffer, %c0, %first, %c0) : (!buffer, index, index, index) -> !tile
      "warp.elect"() ({
        "warp.store_wait"() {pending = 0 : i64, read = true} : () -> ()
      }) : () -> ()
      "warp.named_sync"(%w) {threads = 128 : i64} : (index) -> ()
      "warp.write"(%sum, %view) : (!sums, !tile) -> ()
      "warp.fence_async"() : () -> ()
      "warp.named_sync"(%w) {threads = 128 : i64} : (index) -> ()
      "warp.elect"() ({
        "warp.add_async"(%view, %dq, %c0, %c0, %m, %c0) {ordered = false} : (!tile, !dq, index, index, index, index) -> ()
        "warp.store_commit"() : () -> ()
      }) : () -> ()
    }
  }) {registers = 240 : i64, sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {reduction_warps = 1 : i64}} : () -> ()

// -----

// CHECK: warp.refused = {"warp-specialize-additions" = "sums over keys leave in another way than by asynchronous additions of one role"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 88 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {reduction_warps = 1 : i64}} : () -> ()

// -----

// CHECK: warp.refused = {"warp-specialize-additions" = "the schedule lets the warps that make sums start their additions (reduction_warps)"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 88 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
