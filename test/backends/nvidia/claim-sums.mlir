// The first thread block at a block of queries stores its sums, others add: one thread asks early, claims, and tells of its store later.
// RUN: attn-opt %s --split-input-file -p 'warp-claim-sums' | FileCheck %s

!sums = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf32, #warp.shared<128 : i64>>
!buffer = memref<1x64x64xf32, #warp.shared<128 : i64>>
!dq = memref<?x?x?x?x64xf32>
!counters = memref<?xi32>

// CHECK: %[[HELD:.*]] = "warp.alloc"() : () -> memref<1x2xi32
// CHECK: scf.for
// CHECK-NEXT: %[[INDEX:.*]] = arith.addi
// CHECK-NEXT: %[[NOW:.*]] = "warp.order_now"(%[[COUNTERS:.*]], %[[INDEX]])
// CHECK: "warp.named_sync"
// CHECK: scf.if
// CHECK-NEXT: "warp.store_wait"() {pending = 0 : i64, read = false}
// CHECK-NEXT: "warp.order_pass"(%[[COUNTERS]],
// CHECK: "warp.store_wait"() {pending = 0 : i64, read = true}
// CHECK: "warp.write"
// CHECK: %[[FIRST:.*]] = "warp.claim"(%[[COUNTERS]], %[[INDEX]], %[[NOW]])
// CHECK-NEXT: scf.if %[[FIRST]]
// CHECK-NEXT: "warp.store_async"(%[[TILE:[^,]*]],
// CHECK: memref.store %{{.*}}, %[[HELD]]
// CHECK: memref.store %{{.*}}, %[[HELD]]
// CHECK: } else {
// CHECK-NEXT: "warp.add_async"(%[[TILE]],
// CHECK: "warp.store_commit"
// What the role still holds at its end.
// CHECK: "warp.store_wait"() {pending = 0 : i64, read = false}
// CHECK: "warp.order_pass"(%[[COUNTERS]],
"warp.kernel"() ({
^bb0(%dq: !dq, %n: index, %counters: !counters):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %buffer = "warp.alloc"() : () -> !buffer
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %m = %c0 to %n step %c1 {
      "warp.named_sync"(%c1) {threads = 128 : i64} : (index) -> ()
      %at = arith.addi %m, %w : index
      %now = "warp.order_now"(%counters, %at) : (!counters, index) -> index
      %tile = ub.poison : !sums
      %view = "warp.view"(%buffer, %c0, %c0, %c0) : (!buffer, index, index, index) -> !tile
      "warp.elect"() ({
        "warp.store_wait"() {pending = 0 : i64, read = true} : () -> ()
      }) : () -> ()
      "warp.write"(%tile, %view) : (!sums, !tile) -> ()
      "warp.elect"() ({
        "warp.add_async"(%view, %dq, %c0, %c0, %m, %c0) {ordered = false} : (!tile, !dq, index, index, index, index) -> ()
        "warp.store_commit"() : () -> ()
      }) : () -> ()
    }
    "warp.elect"() ({
      "warp.store_wait"() {pending = 0 : i64, read = false} : () -> ()
    }) : () -> ()
  }) {registers = 88 : i64, sym_name = "sums", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {claims = 1 : i64}} : () -> ()

// -----

// CHECK: warp.refused = {"warp-claim-sums" = "nothing is stored first: no `claims` in `warp.schedule`"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 88 : i64, sym_name = "sums", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-claim-sums" = "sums over keys leave in another way than by asynchronous additions of one role"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 88 : i64, sym_name = "sums", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {claims = 1 : i64}} : () -> ()

// -----

!tile = memref<64x64xf32, #warp.shared<128 : i64>>
!buffer = memref<1x64x64xf32, #warp.shared<128 : i64>>
!dq = memref<?x?x?x?x64xf32>
!counters = memref<?xi32>
!free = !warp.barrier<1 : i64, 1 : i64>

// A warp that only adds waits for its store, and tells it at once.
// CHECK: scf.for
// CHECK-NEXT: %[[NOW:.*]] = "warp.order_now"(%[[COUNTERS:.*]], %[[INDEX:.*]]) :
// CHECK: %[[FIRST:.*]] = "warp.claim"(%[[COUNTERS]], %[[INDEX]], %[[NOW]])
// CHECK-NEXT: scf.if %[[FIRST]]
// CHECK-NEXT: "warp.store_async"
// CHECK-NEXT: } else {
// CHECK-NEXT: "warp.add_async"
// CHECK: "warp.arrive"
// CHECK-NEXT: scf.if %[[FIRST]]
// CHECK-NEXT: "warp.store_wait"() {pending = 0 : i64, read = false}
// CHECK: "warp.order_pass"(%[[COUNTERS]], %[[INDEX]],
"warp.kernel"() ({
^bb0(%dq: !dq, %n: index, %counters: !counters):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %buffer = "warp.alloc"() : () -> !buffer
  %free = "warp.mbarrier"() : () -> !free
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 24 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64} : () -> ()
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %m = %c0 to %n step %c1 {
      %now = "warp.order_now"(%counters, %m) : (!counters, index) -> index
      %view = "warp.view"(%buffer, %c0, %c0, %c0) : (!buffer, index, index, index) -> !tile
      "warp.named_sync"(%c1) {threads = 160 : i64} : (index) -> ()
      "warp.elect"() ({
        "warp.add_async"(%view, %dq, %c0, %c0, %m, %c0) {ordered = false} : (!tile, !dq, index, index, index, index) -> ()
        "warp.store_commit"() : () -> ()
        "warp.store_wait"() {pending = 0 : i64, read = true} : () -> ()
        "warp.arrive"(%free, %w) : (!free, index) -> ()
      }) : () -> ()
    }
  }) {first_warp = 1 : i64, registers = 24 : i64, sym_name = "additions", warpgroups = 1 : i64, warps = 1 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {claims = 1 : i64}} : () -> ()
