// What follows from the number of a tile alone is computed by the thread that draws it, and told beside the number.
// RUN: attn-opt %s --split-input-file -p 'warp-draw-tiles{draw=true},warp-tell-numbers{always=true},canonicalize,cse' | FileCheck %s
// RUN: attn-opt %s --split-input-file -p 'warp-draw-tiles{draw=true},warp-tell-numbers' | FileCheck %s --check-prefix=UNASKED

// CHECK: %[[SLOTS:.*]] = "warp.alloc"() : () -> memref<2x1xi32
// CHECK: %[[NUMBERS:.*]] = "warp.alloc"() : () -> memref<2x2xi32
// CHECK: scf.while
// CHECK: "warp.elect"
// CHECK: %[[DRAWN:.*]] = scf.if
// CHECK: %[[BLOCK:.*]] = arith.remui %[[DRAWN]], %c7
// CHECK: %[[BEGIN:.*]] = arith.muli %[[BLOCK]], %c192
// CHECK: %[[TOLD:.*]] = arith.index_cast %[[BEGIN]]
// CHECK: memref.store %[[TOLD]], %[[NUMBERS]]
// CHECK: memref.store %{{.*}}, %[[SLOTS]]
// The other role reads it, and what its warpgroup adds stays its own; then it has heard.
// CHECK: "warp.role"
// CHECK: scf.while
// CHECK: } do {
// CHECK: %[[STAGE:.*]]:2 = "warp.stage"
// CHECK: %[[READ:.*]] = memref.load %[[NUMBERS]][%[[STAGE]]#0, %{{.*}}]
// CHECK: "warp.arrive"(%{{.*}}, %[[STAGE]]#0)
// CHECK: %[[NUMBER:.*]] = arith.index_cast %[[READ]]
// CHECK-NOT: arith.remui
// CHECK: arith.addi %{{.*}}, %{{.*}}
// CHECK: sym_name = "kernel"
// UNASKED: warp.refused = {"warp-tell-numbers" = "the schedule lets each warp compute the numbers of its tiles"}
"warp.kernel"() ({
^bb0(%tiles: index):
  "warp.role"() ({
  ^bb0(%warpgroup: index):
    %id = "warp.block_id"() : () -> index
    %count = "warp.block_count"() : () -> index
    %c0 = arith.constant 0 : index
    %sum = scf.for %tile = %id to %tiles step %count iter_args(%own = %c0) -> (index) {
      %c192 = arith.constant 192 : index
      %blocks = arith.constant 7 : index
      %block = arith.remui %tile, %blocks : index
      %begin = arith.muli %block, %c192 : index
      %more = arith.addi %own, %begin : index
      scf.yield %more : index
    }
  }) {sym_name = "first", warpgroups = 1 : i64, warps = 1 : i64, registers = 24 : i64} : () -> ()
  "warp.role"() ({
  ^bb0(%warpgroup: index):
    %id = "warp.block_id"() : () -> index
    %count = "warp.block_count"() : () -> index
    %c0 = arith.constant 0 : index
    %sum = scf.for %tile = %id to %tiles step %count iter_args(%own = %c0) -> (index) {
      %c192 = arith.constant 192 : index
      %blocks = arith.constant 7 : index
      %block = arith.remui %tile, %blocks : index
      %begin = arith.muli %block, %c192 : index
      %first = arith.addi %begin, %warpgroup : index
      %more = arith.addi %own, %first : index
      scf.yield %more : index
    }
  }) {sym_name = "second", warpgroups = 1 : i64, warps = 4 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "kernel", function = "", registers = 24 : i64, lanes = 32 : i64, register_file = 65536 : i64, shared_limit = 232448 : i64} : () -> ()
