// Comparisons of positions become one of columns with a bound that each row has.
// RUN: attn-opt %s --split-input-file -p 'warp-bound-columns,canonicalize,cse' | FileCheck %s

!tile = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// CHECK: ^bb0(%[[ROW:.*]]: index, %[[COLUMN:.*]]: index, %[[N:.*]]: index,
// CHECK: %[[BOUND:.*]] = "warp.map"() ({
// CHECK-NEXT: ^bb0(%[[I:.*]]: index):
// CHECK: %[[Q:.*]] = arith.addi %[[ROW]], %[[I]]
// CHECK: %[[SEEN:.*]] = arith.subi %[[Q]], %[[COLUMN]]
// CHECK: arith.addi %[[SEEN]], %c1
// CHECK: arith.minsi %{{.*}}, %[[N]]
// CHECK: -> tensor<64xi32, #warp.layout<"wgmma", "rows">>
// CHECK: "warp.map"() ({
// CHECK-NEXT: ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK: %[[B:.*]] = tensor.extract %[[BOUND]][%[[I]]]
// CHECK: %[[OWN:.*]] = arith.index_cast %[[J]]
// CHECK: %[[IS:.*]] = arith.cmpi slt, %[[OWN]], %[[B]] : i32
// CHECK: arith.select %[[IS]]
// CHECK-NOT: arith.cmpi
// CHECK: "warp.store"
"warp.kernel"() ({
^bb0(%row: index, %column: index, %n: index, %o: memref<?x?x?x64xf32>):
  %c0 = arith.constant 0 : index
  %infinite = arith.constant 0xFF800000 : f32
  "warp.role"() ({
  ^bb0(%w: index):
    %scores = ub.poison : !tile
    %masked = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %scores[%i, %j] : !tile
      %q_idx = arith.addi %row, %i : index
      %kv_idx = arith.addi %column, %j : index
      %seen = arith.cmpi sge, %q_idx, %kv_idx : index
      %within = arith.cmpi slt, %j, %n : index
      %both = arith.andi %seen, %within : i1
      %a = arith.select %both, %s, %infinite : f32
      "warp.yield"(%a) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !tile
    "warp.store"(%masked, %o, %c0, %c0, %c0) : (!tile, memref<?x?x?x64xf32>, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

!tile = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// A bound that all rows share is a number already.
// CHECK: warp.refused = {"warp-bound-columns" = "no map compares columns with what depends on the row"}
"warp.kernel"() ({
^bb0(%n: index, %o: memref<?x?x?x64xf32>):
  %c0 = arith.constant 0 : index
  %infinite = arith.constant 0xFF800000 : f32
  "warp.role"() ({
  ^bb0(%w: index):
    %scores = ub.poison : !tile
    %masked = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %scores[%i, %j] : !tile
      %within = arith.cmpi slt, %j, %n : index
      %a = arith.select %within, %s, %infinite : f32
      "warp.yield"(%a) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !tile
    "warp.store"(%masked, %o, %c0, %c0, %c0) : (!tile, memref<?x?x?x64xf32>, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

!tile = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// A sliding window whose sides may have no limit: a bound of each side.
// CHECK: ^bb0(%[[ROW:.*]]: index, %[[COLUMN:.*]]: index, %[[LEFT:.*]]: index, %[[RIGHT:.*]]: index, %[[FREE:.*]]: i1,
// CHECK: %[[BOUNDS:.*]]:2 = "warp.map"() ({
// CHECK-NEXT: ^bb0(%[[I:.*]]: index):
// CHECK: %[[Q:.*]] = arith.addi %[[ROW]], %[[I]]
// CHECK: %[[LAST:.*]] = arith.subi %{{.*}}, %[[COLUMN]]
// CHECK: arith.addi %{{.*}}, %c1
// CHECK: arith.select %[[FREE]], %c64, %{{.*}}
// CHECK: arith.select %[[FREE]], %c0, %{{.*}}
// CHECK: {reductions = ["", ""]
// CHECK: ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK: %[[OWN:.*]] = arith.index_cast %[[J]]
// CHECK-DAG: arith.cmpi slt, %[[OWN]], %{{.*}} : i32
// CHECK-DAG: arith.cmpi sge, %[[OWN]], %{{.*}} : i32
// CHECK-NOT: arith.ori
// CHECK: arith.andi
// CHECK: arith.select
"warp.kernel"() ({
^bb0(%row: index, %column: index, %left: index, %right: index, %free: i1, %o: memref<?x?x?x64xf32>):
  %c0 = arith.constant 0 : index
  %infinite = arith.constant 0xFF800000 : f32
  "warp.role"() ({
  ^bb0(%w: index):
    %scores = ub.poison : !tile
    %masked = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %scores[%i, %j] : !tile
      %q_idx = arith.addi %row, %i : index
      %kv_idx = arith.addi %column, %j : index
      %back = arith.subi %q_idx, %kv_idx : index
      %near = arith.cmpi sle, %back, %left : index
      %before = arith.ori %free, %near : i1
      %ahead = arith.subi %kv_idx, %q_idx : index
      %close = arith.cmpi sle, %ahead, %right : index
      %after = arith.ori %free, %close : i1
      %both = arith.andi %before, %after : i1
      %a = arith.select %both, %s, %infinite : f32
      "warp.yield"(%a) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !tile
    "warp.store"(%masked, %o, %c0, %c0, %c0) : (!tile, memref<?x?x?x64xf32>, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

!tile = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// Conditions of an inner `and` that stand before the outer one's: one comparison before all of them.
// CHECK: "warp.map"() ({
// CHECK: arith.minsi
// CHECK: arith.minsi
// CHECK: "warp.map"() ({
// CHECK: arith.cmpi slt, %{{.*}} : i32
// CHECK-NOT: arith.cmpi
// CHECK: "warp.store"

"warp.kernel"() ({
^bb0(%row: index, %column: index, %n: index, %m: index, %o: memref<?x?x?x64xf32>):
  %c0 = arith.constant 0 : index
  %infinite = arith.constant 0xFF800000 : f32
  "warp.role"() ({
  ^bb0(%w: index):
    %scores = ub.poison : !tile
    %masked = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %scores[%i, %j] : !tile
      %q_idx = arith.addi %row, %i : index
      %kv_idx = arith.addi %column, %j : index
      %within = arith.cmpi slt, %j, %n : index
      %near = arith.cmpi slt, %kv_idx, %m : index
      %inner = arith.andi %within, %near : i1
      %seen = arith.cmpi sge, %q_idx, %kv_idx : index
      %both = arith.andi %seen, %inner : i1
      %a = arith.select %both, %s, %infinite : f32
      "warp.yield"(%a) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !tile
    "warp.store"(%masked, %o, %c0, %c0, %c0) : (!tile, memref<?x?x?x64xf32>, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

!tile = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// A chunk of keys is an interval of them: no element divides.
// CHECK: "warp.map"() ({
// CHECK-NEXT: ^bb0(%[[I:.*]]: index):
// CHECK: %[[CHUNK:.*]] = arith.floordivsi %{{.*}}, %[[SIZE:.*]] : index
// CHECK: %[[FIRST:.*]] = arith.muli %[[CHUNK]], %[[SIZE]]
// CHECK: "warp.map"() ({
// CHECK-NEXT: ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK-NOT: arith.floordivsi
// CHECK-DAG: arith.cmpi sge
// CHECK-DAG: arith.cmpi slt
// CHECK: arith.select
// CHECK: "warp.store"
"warp.kernel"() ({
^bb0(%row: index, %column: index, %n: index, %o: memref<?x?x?x64xf32>):
  %c0 = arith.constant 0 : index
  %size = arith.constant 48 : index
  %infinite = arith.constant 0xFF800000 : f32
  "warp.role"() ({
  ^bb0(%w: index):
    %scores = ub.poison : !tile
    %masked = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %scores[%i, %j] : !tile
      %q_idx = arith.addi %row, %i : index
      %kv_idx = arith.addi %column, %j : index
      %mine = arith.floordivsi %q_idx, %size : index
      %theirs = arith.floordivsi %kv_idx, %size : index
      %same = arith.cmpi eq, %mine, %theirs : index
      %a = arith.select %same, %s, %infinite : f32
      "warp.yield"(%a) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !tile
    "warp.store"(%masked, %o, %c0, %c0, %c0) : (!tile, memref<?x?x?x64xf32>, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
