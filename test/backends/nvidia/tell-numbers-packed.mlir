// Of packed sequences, the thread that draws a tile reads its item, and how long its sequence is; nobody else does.
// RUN: attn-opt %s -p 'warp-draw-tiles{draw=true},warp-tell-numbers{always=true},canonicalize,cse' | FileCheck %s

!n = memref<?xi32, strided<[?]>>
!work = memref<?x4xi32, strided<[?, ?]>>

// CHECK: ^bb0(%[[LENGTHS:.*]]: memref<?xi32, {{.*}}>, %[[SCORES:.*]]: memref<?xi32, {{.*}}>, %[[WORK:.*]]: memref<?x4xi32, {{.*}}>, %{{.*}}: index
// CHECK: scf.while
// CHECK: "warp.elect"
// CHECK: %[[OWNER:.*]] = memref.load %[[WORK]]
// CHECK: %[[SEQUENCE:.*]] = arith.index_cast %[[OWNER]]
// CHECK: %[[LENGTH:.*]] = memref.load %[[LENGTHS]][%[[SEQUENCE]]]
// CHECK: memref.store %{{.*}}, %[[NUMBERS:.*]][
// CHECK: } do {
// CHECK-NOT: memref.load %[[LENGTHS]]
// CHECK-NOT: memref.load %[[WORK]]
// Others may be written meanwhile, or have no such number.
// CHECK: memref.load %[[SCORES]]
"warp.kernel"() ({
^bb0(%lengths: !n, %scores: !n, %work: !work, %tiles: index):
  "warp.role"() ({
  ^bb0(%warpgroup: index):
    %id = "warp.block_id"() : () -> index
    %count = "warp.block_count"() : () -> index
    %c0 = arith.constant 0 : index
    %sum = scf.for %tile = %id to %tiles step %count iter_args(%own = %c0) -> (index) {
      %owner = memref.load %work[%tile, %c0] : !work
      %sequence = arith.index_cast %owner : i32 to index
      %told = memref.load %lengths[%sequence] : !n
      %length = arith.index_cast %told : i32 to index
      %score = memref.load %scores[%sequence] : !n
      %other = arith.index_cast %score : i32 to index
      %more = arith.addi %own, %length : index
      %most = arith.addi %more, %other : index
      scf.yield %most : index
    }
  }) {sym_name = "only", warpgroups = 1 : i64, warps = 4 : i64, registers = 24 : i64} : () -> ()
}) {sym_name = "kernel", function = "", registers = 24 : i64, lanes = 32 : i64, register_file = 65536 : i64, shared_limit = 232448 : i64,
    tile.kernel = {begins = array<i64>, block_q = 64 : i64, lengths = array<i64: 0>}} : () -> ()
