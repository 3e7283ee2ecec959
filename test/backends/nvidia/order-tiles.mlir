// A tile's number stands for another tile: groups of heads, the last block first, every second round of a group from its end.
// RUN: attn-opt %s --split-input-file -p 'warp-order-tiles{group=8}' | FileCheck %s

// CHECK: %[[COUNT:.*]] = "warp.block_count"
// CHECK: scf.for %[[TILE:.*]] = %{{.*}} to %[[TILES:.*]] step %[[COUNT]]
// CHECK: %[[SIZE:.*]] = arith.muli %{{.*}}, %c8{{.*}} : index
// CHECK: %[[INSIDE:.*]] = arith.remui %[[TILE]], %[[SIZE]]
// CHECK: %[[WIDTH:.*]] = arith.maxsi %{{.*}}, %c1{{.*}} : index
// Rounds are counted in the group.
// CHECK: %[[ROUND:.*]] = arith.divui %[[INSIDE]], %[[COUNT]]
// CHECK: %[[NEXT:.*]] = arith.addi %[[ROUND]], %c1{{.*}} : index
// CHECK: %[[END:.*]] = arith.muli %[[NEXT]], %[[COUNT]]
// CHECK: %[[ODD:.*]] = arith.cmpi ne, %{{.*}}, %{{.*}} : index
// CHECK: %[[ALL:.*]] = arith.muli %[[WIDTH]], %{{.*}} : index
// CHECK-NEXT: %[[WHOLE:.*]] = arith.cmpi sle, %[[END]], %[[ALL]] : index
// CHECK: %[[TURNED:.*]] = arith.andi %[[ODD]], %[[WHOLE]]
// CHECK-NEXT: arith.select %[[TURNED]], %{{.*}}, %[[INSIDE]] : index
// CHECK: %[[NUMBER:.*]] = arith.maxsi
// CHECK: arith.divui %[[NUMBER]], %[[WIDTH]]
// CHECK: %[[BLOCK:.*]] = arith.subi
// CHECK: arith.remui %[[NUMBER]], %[[WIDTH]]
// CHECK: %[[PAIR:.*]] = arith.maxsi %{{.*}}, %c0{{.*}} : index
// CHECK: arith.remsi %[[PAIR]], %{{.*}} : index
// CHECK: arith.divsi %[[PAIR]], %{{.*}} : index
// CHECK: arith.muli %[[BLOCK]]
"warp.kernel"() ({
^bb0(%blocks: index, %heads: index, %tiles: index):
  %c192 = arith.constant 192 : index
  "warp.role"() ({
  ^bb0(%w: index):
    %id = "warp.block_id"() : () -> index
    %count = "warp.block_count"() : () -> index
    %sum = scf.for %tile = %id to %tiles step %count iter_args(%x = %id) -> (index) {
      %rest = arith.divsi %tile, %blocks : index
      %block = arith.remsi %tile, %blocks : index
      %head = arith.remsi %rest, %heads : index
      %batch = arith.divsi %rest, %heads : index
      %row = arith.muli %block, %c192 : index
      %y = arith.addi %head, %batch : index
      %z = arith.addi %row, %y : index
      scf.yield %z : index
    }
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-order-tiles" = "a tile's number is more than that of its block and its head"}
"warp.kernel"() ({
^bb0(%tiles: index):
  "warp.role"() ({
  ^bb0(%w: index):
    %id = "warp.block_id"() : () -> index
    %count = "warp.block_count"() : () -> index
    %sum = scf.for %tile = %id to %tiles step %count iter_args(%x = %id) -> (index) {
      scf.yield %tile : index
    }
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-order-tiles" = "no loop takes tiles from its thread block's number on"}
"warp.kernel"() ({
^bb0(%tiles: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
