// A loop over a share of the tiles becomes one that goes on until none is left: the first role draws, a message tells all roles.
// RUN: attn-opt %s --split-input-file -p 'warp-draw-tiles{draw=true}' | FileCheck %s
// RUN: attn-opt %s --split-input-file -p warp-draw-tiles | FileCheck %s --check-prefix=UNASKED

// CHECK: ^bb0(%[[TILES:.*]]: index, %[[COUNTER:.*]]: memref<?xi32>):
// CHECK: %[[SLOTS:.*]] = "warp.alloc"() : () -> memref<2x1xi32
// CHECK: %[[TOLD:.*]] = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 1 : i64>
// CHECK: %[[HEARD:.*]] = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 5 : i64>
// CHECK: scf.while (%[[ROUND:.*]] = %{{.*}}, %{{.*}} = %{{.*}}, %[[OWN:.*]] = %{{.*}}) : (index, index, index)
// CHECK: %[[MESSAGE:.*]]:2 = "warp.stage"(%[[ROUND]]) {stages = 2 : i64}
// CHECK: scf.if
// CHECK: "warp.wait"(%[[HEARD]], %[[MESSAGE]]#0, %{{.*}})
// CHECK: "warp.elect"
// CHECK: scf.if
// CHECK: "warp.block_id"
// CHECK: %[[LAST:.*]] = arith.subi %[[TILES]], %c1{{.*}}
// CHECK: %[[DRAWN:.*]] = "warp.next_tile"(%[[COUNTER]], %[[LAST]])
// CHECK: %[[MANY:.*]] = "warp.block_count"
// CHECK: arith.addi %[[MANY]], %[[DRAWN]]
// CHECK: memref.store %{{.*}}, %[[SLOTS]][%[[MESSAGE]]#0,
// CHECK: "warp.arrive"(%[[TOLD]]
// CHECK: "warp.wait"(%[[TOLD]], %[[MESSAGE]]#0, %[[MESSAGE]]#1)
// CHECK: memref.load %[[SLOTS]][%[[MESSAGE]]#0,
// CHECK: "warp.arrive"(%[[HEARD]], %[[MESSAGE]]#0)
// CHECK: %[[MORE:.*]] = arith.cmpi slt, %[[TILE:.*]], %[[TILES]]
// CHECK: scf.condition(%[[MORE]]) %[[ROUND]], %[[TILE]], %[[OWN]]
// CHECK: ^bb0(%[[ROUND_:.*]]: index, %[[TILE_:.*]]: index, %[[OWN_:.*]]: index):
// CHECK: %[[SUM:.*]] = arith.addi %[[OWN_]], %[[TILE_]]
// CHECK: scf.yield %{{.*}}, %[[TILE_]], %[[SUM]]
// The other role only hears.
// CHECK: "warp.role"
// CHECK: scf.while
// CHECK-NOT: warp.next_tile
// CHECK: "warp.wait"(%[[TOLD]]
// CHECK: "warp.arrive"(%[[HEARD]]
"warp.kernel"() ({
^bb0(%tiles: index):
  "warp.role"() ({
  ^bb0(%w: index):
    %id = "warp.block_id"() : () -> index
    %count = "warp.block_count"() : () -> index
    %sum = scf.for %tile = %id to %tiles step %count iter_args(%x = %id) -> (index) {
      %y = arith.addi %x, %tile : index
      scf.yield %y : index
    }
  }) {registers = 40 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64} : () -> ()
  "warp.role"() ({
  ^bb0(%w: index):
    %id = "warp.block_id"() : () -> index
    %count = "warp.block_count"() : () -> index
    scf.for %tile = %id to %tiles step %count {
    }
  }) {registers = 40 : i64, sym_name = "consumer", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-draw-tiles" = "a role has no loop, or several, that takes tiles from its thread block's number on"}
"warp.kernel"() ({
^bb0(%tiles: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// Chips without such barriers: one draw for a thread block's first tile, which all of it hear; the last thread block leaves the counter zero.
// CHECK: ^bb0(%[[TILES:.*]]: index, %[[COUNTER:.*]]: memref<?xi32>):
// CHECK: %[[TOLD:.*]] = "warp.alloc"() : () -> memref<1x1xi32
// CHECK-NOT: warp.mbarrier
// CHECK: "warp.elect"
// CHECK: %[[MANY:.*]] = "warp.block_count"
// CHECK: %[[LAST:.*]] = arith.subi %[[MANY]], %c1{{.*}}
// CHECK: %[[DRAWN:.*]] = "warp.next_tile"(%[[COUNTER]], %[[LAST]])
// CHECK: memref.store %{{.*}}, %[[TOLD]]
// CHECK: "warp.named_sync"(%{{.*}}) {threads = 256 : i64}
// CHECK: %[[HEARD:.*]] = memref.load %[[TOLD]]
// CHECK: %[[FIRST:.*]] = arith.index_cast %[[HEARD]]
// CHECK: scf.for %{{.*}} = %[[FIRST]] to %[[TILES]]
"warp.kernel"() ({
^bb0(%tiles: index):
  "warp.role"() ({
  ^bb0(%w: index):
    %id = "warp.block_id"() : () -> index
    %count = "warp.block_count"() : () -> index
    scf.for %tile = %id to %tiles step %count {
    }
  }) {registers = 128 : i64, sym_name = "all", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 166912 : i64, sym_name = "f",
    warp.schedule = {arch = "sm_80"}} : () -> ()

// -----

// Tiles that wait for others: nothing need ask for draws (of the kernels here this one alone draws then), and the first tile is drawn, too.
// Each thread block draws one number that is no tile.
// CHECK: ^bb0(%[[TILES:.*]]: index, %{{.*}}: memref<?xi32>, %[[COUNTER:.*]]: memref<?xi32>):
// CHECK: scf.while
// CHECK-NOT: warp.block_id
// CHECK: %[[MANY:.*]] = "warp.block_count"
// CHECK: %[[OTHERS:.*]] = arith.subi %[[MANY]], %c1{{.*}}
// CHECK: %[[LAST:.*]] = arith.addi %[[TILES]], %[[OTHERS]]
// CHECK: %[[DRAWN:.*]] = "warp.next_tile"(%[[COUNTER]], %[[LAST]])
// CHECK-NEXT: %[[NUMBER:.*]] = arith.index_cast %[[DRAWN]]
// CHECK: memref.store %[[NUMBER]]
// UNASKED-COUNT-1: warp.next_tile
// UNASKED-NOT: warp.next_tile
"warp.kernel"() ({
^bb0(%tiles: index, %turns: memref<?xi32>):
  "warp.role"() ({
  ^bb0(%w: index):
    %zero = arith.constant 0 : index
    %id = "warp.block_id"() : () -> index
    %count = "warp.block_count"() : () -> index
    scf.for %tile = %id to %tiles step %count {
      "warp.order_wait"(%turns, %zero, %tile) : (memref<?xi32>, index, index) -> ()
    }
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
