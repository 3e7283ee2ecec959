// Tiles leave through shared memory: written, shown to copies, and stored by one thread while the role goes on.
// RUN: attn-opt %s --split-input-file -p 'warp-stage-stores' | FileCheck %s

!half = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
!rows = tensor<64xf32, #warp.layout<"wgmma", "rows">>
!out = memref<?x?x?x64xf16>
!sums = memref<?x?x?xf32>

// CHECK: %[[BUFFER:.*]] = "warp.alloc"() : () -> memref<1x128x64xf16, #warp.shared<128 : i64>>
// CHECK: ^bb0(%[[WARPGROUP:.*]]: index):
// CHECK: scf.for
// CHECK: %[[FIRST:.*]] = arith.muli %[[WARPGROUP]], %c64{{.*}} : index
// CHECK: %[[OWN:.*]] = arith.addi %[[WARPGROUP]], %c8{{.*}} : index
// CHECK: %[[VIEW:.*]] = "warp.view"(%[[BUFFER]], %{{.*}}, %[[FIRST]], %{{.*}})
// CHECK-NEXT: "warp.elect"() ({
// CHECK-NEXT: "warp.store_wait"() {pending = 0 : i64, read = true}
// CHECK-NEXT: }) : () -> ()
// CHECK-NEXT: "warp.named_sync"(%[[OWN]]) {threads = 128 : i64}
// CHECK-NEXT: "warp.write"(%{{.*}}, %[[VIEW]])
// CHECK-NEXT: "warp.fence_async"
// CHECK-NEXT: "warp.named_sync"(%[[OWN]]) {threads = 128 : i64}
// CHECK-NEXT: "warp.elect"() ({
// CHECK-NEXT: "warp.store_async"(%[[VIEW]], %{{.*}}, %{{.*}}, %{{.*}}, %[[ROW:.*]], %{{.*}})
// CHECK-NEXT: "warp.store_commit"
// Row values stay.
// CHECK: "warp.store"
// CHECK-NOT: "warp.store"
// CHECK: "warp.elect"() ({
// CHECK-NEXT: "warp.store_wait"() {pending = 0 : i64, read = false}
"warp.kernel"() ({
^bb0(%o: !out, %lse: !sums, %n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  "warp.role"() ({
  ^bb0(%w: index):
    %tile = ub.poison : !half
    %values = ub.poison : !rows
    scf.for %m = %c0 to %n step %c1 {
      "warp.store"(%tile, %o, %c0, %m, %w) : (!half, !out, index, index, index) -> ()
      "warp.store"(%values, %lse, %c0, %m, %w) : (!rows, !sums, index, index, index) -> ()
    }
  }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

!half = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>

// CHECK: warp.refused = {"warp-stage-stores" = "tiles that leave through shared memory take 8192 bytes beside 0, there are 4096"}
"warp.kernel"() ({
^bb0(%o: memref<?x?x?x64xf16>):
  %c0 = arith.constant 0 : index
  "warp.role"() ({
  ^bb0(%w: index):
    %tile = ub.poison : !half
    "warp.store"(%tile, %o, %c0, %c0, %w) : (!half, memref<?x?x?x64xf16>, index, index, index) -> ()
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 4096 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-stage-stores" = "no tile in whole swizzle atoms is stored as 16 bits or added as f32"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// Sums leave the same way, and are added: to the first slot, from a column on.
!sums = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// CHECK: "warp.alloc"() : () -> memref<1x64x64xf32, #warp.shared<128 : i64>>
// CHECK: "warp.write"(%{{.*}}, %[[VIEW:.*]]) : (tensor<64x64xf32
// CHECK: "warp.add_async"(%[[VIEW]], %{{.*}}, %{{.*}}, %{{.*}}, %[[GROUP:.*]], %c64)
// CHECK-NOT: warp.atomic_add
"warp.kernel"() ({
^bb0(%dq: memref<?x?x?x?x128xf32>):
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  "warp.role"() ({
  ^bb0(%w: index):
    %tile = ub.poison : !sums
    "warp.atomic_add"(%tile, %dq, %c0, %c0, %w, %c64) {ordered = false} : (!sums, memref<?x?x?x?x128xf32>, index, index, index, index) -> ()
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// An addition with a place in an order: the thread that starts it waits for its semaphore alone, and passes it on when the next tile is written.
!sums = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// CHECK: %[[HELD:.*]] = "warp.alloc"() : () -> memref<1x2xi32
// CHECK: "warp.store_wait"() {pending = 0 : i64, read = false}
// CHECK: %[[COUNTER:.*]] = arith.index_cast
// CHECK: %[[NUMBER:.*]] = arith.index_cast
// CHECK: %[[IS_HELD:.*]] = arith.cmpi ne, %[[NUMBER]], %c0
// CHECK: scf.if %[[IS_HELD]]
// CHECK: "warp.order_pass"(%[[SEMAPHORES:.*]], %[[COUNTER]], %[[NUMBER]])
// CHECK: "warp.write"
// CHECK: "warp.elect"
// CHECK-NEXT: "warp.order_wait"(%[[SEMAPHORES]], %[[GROUP:.*]], %c7)
// CHECK-NEXT: "warp.add_async"({{.*}}) {ordered = true}
// CHECK-NEXT: "warp.store_commit"
// CHECK: arith.index_cast %[[GROUP]]
// CHECK: memref.store %{{.*}}, %[[HELD]]
// CHECK: arith.index_cast %c8
// CHECK: memref.store %{{.*}}, %[[HELD]]
"warp.kernel"() ({
^bb0(%dq: memref<?x?x?x?x64xf32>, %semaphores: memref<?xi32>):
  %c0 = arith.constant 0 : index
  %c7 = arith.constant 7 : index
  %c8 = arith.constant 8 : index
  "warp.role"() ({
  ^bb0(%w: index):
    %tile = ub.poison : !sums
    "warp.elect"() ({
      "warp.order_wait"(%semaphores, %w, %c7) : (memref<?xi32>, index, index) -> ()
    }) : () -> ()
    "warp.named_sync"(%c8) {threads = 128 : i64} : (index) -> ()
    "warp.atomic_add"(%tile, %dq, %c0, %c0, %c0, %c0) {ordered = true} : (!sums, memref<?x?x?x?x64xf32>, index, index, index, index) -> ()
    "warp.named_sync"(%c8) {threads = 128 : i64} : (index) -> ()
    "warp.elect"() ({
      "warp.order_pass"(%semaphores, %w, %c8) : (memref<?xi32>, index, index) -> ()
    }) : () -> ()
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// Without room for a buffer the tile leaves through the stage of a ring that the role gives back before, which it now does afterwards.
!half = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
!buffer = memref<1x64x64xf16, #warp.shared<128 : i64>>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!free = !warp.barrier<1 : i64, 4 : i64>

// CHECK: %[[QUERIES:.*]] = "warp.alloc"
// CHECK: %[[FREE:.*]] = "warp.mbarrier"
// CHECK: %[[STAGE:.*]]:2 = "warp.stage"
// CHECK-NOT: warp.arrive
// CHECK: %[[ROW:.*]] = arith.muli
// CHECK: %[[VIEW:.*]] = "warp.view"(%[[QUERIES]], %[[STAGE]]#0, %[[ROW]], %{{.*}})
// CHECK: "warp.named_sync"
// CHECK-NEXT: "warp.write"(%{{.*}}, %[[VIEW]])
// CHECK: "warp.store_async"(%[[VIEW]]
// CHECK-NEXT: "warp.store_commit"
// CHECK-NEXT: "warp.store_wait"() {pending = 0 : i64, read = true}
// CHECK-NEXT: }) : () -> ()
// CHECK-NEXT: "warp.arrive"(%[[FREE]], %[[STAGE]]#0)
"warp.kernel"() ({
^bb0(%o: memref<?x?x?x64xf16>, %n: index):
  %c0 = arith.constant 0 : index
  %q = "warp.alloc"() : () -> !buffer
  %q_free = "warp.mbarrier"() : () -> !free
  "warp.role"() ({
  ^bb0(%w: index):
    %tile = ub.poison : !half
    %q_stage:2 = "warp.stage"(%n) {stages = 1 : i64} : (index) -> (index, index)
    %own = "warp.view"(%q, %q_stage#0, %c0, %c0) : (!buffer, index, index, index) -> !tile
    "warp.arrive"(%q_free, %q_stage#0) : (!free, index) -> ()
    "warp.store"(%tile, %o, %c0, %c0, %w) : (!half, memref<?x?x?x64xf16>, index, index, index) -> ()
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 8320 : i64, sym_name = "f"} : () -> ()
