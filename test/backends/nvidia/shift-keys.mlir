// Blocks of keys begin with the first key that a tile sees; what later loops begin with is so many whole blocks after it.
// RUN: attn-opt %s --split-input-file -p 'warp-shift-keys' | FileCheck %s

// CHECK: %[[KEY:.*]] = arith.maxsi
// CHECK: %[[FULL:.*]] = arith.addi %[[KEY]], %{{.*}}
// CHECK: %[[MORE:.*]] = arith.subi %[[FULL]], %[[KEY]]
// CHECK: %[[SOME:.*]] = arith.maxsi %[[MORE]], %{{.*}}
// CHECK: %[[BLOCKS:.*]] = arith.divui %[[SOME]], %c128
// CHECK: %[[WHOLE:.*]] = arith.muli %[[BLOCKS]], %c128
// CHECK: %[[NEXT:.*]] = arith.addi %[[KEY]], %[[WHOLE]]
// CHECK: scf.for %{{.*}} = %[[KEY]] to %[[NEXT]] step %c128
// CHECK: scf.for %{{.*}} = %[[NEXT]] to %{{.*}} step %c128
"warp.kernel"() ({
^bb0(%tiles: index, %left: index, %keys: index):
  "warp.role"() ({
  ^bb0(%w: index):
    %c0 = arith.constant 0 : index
    %c127 = arith.constant 127 : index
    %c128 = arith.constant 128 : index
    %id = "warp.block_id"() : () -> index
    %count = "warp.block_count"() : () -> index
    scf.for %tile = %id to %tiles step %count {
      %before = arith.subi %tile, %left : index
      %key = arith.maxsi %before, %c0 : index
      %full = arith.addi %key, %c127 : index
      %b0 = arith.divsi %key, %c128 : index
      %begin = arith.muli %b0, %c128 : index
      %b1 = arith.divsi %full, %c128 : index
      %next = arith.muli %b1, %c128 : index
      scf.for %j = %begin to %next step %c128 {
      }
      scf.for %j = %next to %keys step %c128 {
      }
    }
  }) {registers = 128 : i64, sym_name = "all", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 166912 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-shift-keys" = "a later block may begin before the first key"}
"warp.kernel"() ({
^bb0(%tiles: index, %left: index, %keys: index):
  "warp.role"() ({
  ^bb0(%w: index):
    %c128 = arith.constant 128 : index
    %id = "warp.block_id"() : () -> index
    %count = "warp.block_count"() : () -> index
    scf.for %tile = %id to %tiles step %count {
      %key = arith.subi %tile, %left : index
      %b0 = arith.divsi %key, %c128 : index
      %begin = arith.muli %b0, %c128 : index
      %b1 = arith.divsi %left, %c128 : index
      %next = arith.muli %b1, %c128 : index
      scf.for %j = %begin to %next step %c128 {
      }
      scf.for %j = %next to %keys step %c128 {
      }
    }
  }) {registers = 128 : i64, sym_name = "all", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 166912 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-shift-keys" = "no loop begins with the block of a key that is computed"}
"warp.kernel"() ({
^bb0(%tiles: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// What is left behind whole blocks from key 0 on stays where it is.
// CHECK: scf.for %{{.*}} = %c0{{.*}} to %[[REST:.*]] step %c128
// CHECK: scf.for %{{.*}} = %[[REST]] to %{{.*}} step %c128
// CHECK: warp.refused = {"warp-shift-keys" = "a loop before begins with a key that is not computed"}
"warp.kernel"() ({
^bb0(%tiles: index, %keys: index):
  "warp.role"() ({
  ^bb0(%w: index):
    %c0 = arith.constant 0 : index
    %c128 = arith.constant 128 : index
    %id = "warp.block_id"() : () -> index
    %count = "warp.block_count"() : () -> index
    scf.for %tile = %id to %tiles step %count {
      %b = arith.divsi %keys, %c128 : index
      %rest = arith.muli %b, %c128 : index
      scf.for %j = %c0 to %rest step %c128 {
      }
      scf.for %j = %rest to %keys step %c128 {
      }
    }
  }) {registers = 128 : i64, sym_name = "all", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 166912 : i64, sym_name = "f"} : () -> ()
