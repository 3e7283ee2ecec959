// Numbers of captured tensors that stay the same are read once, where their place is known.
// RUN: attn-opt %s --split-input-file -p 'warp-hoist-loads' | FileCheck %s

!rows = tensor<64xf32, #warp.layout<"wgmma", "rows">>

// CHECK: scf.for %[[HEAD:.*]] = %c0
// CHECK-NEXT: %[[SLOPE:.*]] = memref.load %[[SLOPES:.*]][%[[HEAD]]]
// CHECK-NEXT: "warp.map"
// CHECK-NEXT: ^bb0(%[[I:.*]]: index):
// CHECK-NEXT: "warp.yield"(%[[SLOPE]])
// CHECK: scf.for %[[KEY:.*]] = %c0
// CHECK: "warp.map"
// The place of a key, and a constant one, change nothing.
// CHECK: %[[AT:.*]] = memref.load %[[SLOPES]][%[[KEY]]]
// CHECK: %[[FIRST:.*]] = memref.load %[[SLOPES]][%c0]
// CHECK: %[[X:.*]] = arith.addf %[[SLOPE]], %[[AT]]
"warp.kernel"() ({
^bb0(%slopes: memref<?xf32>, %n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %head = %c0 to %n step %c1 {
      %first = "warp.map"() ({
      ^bb0(%i: index):
        %slope = memref.load %slopes[%head] : memref<?xf32>
        "warp.yield"(%slope) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> !rows
      scf.for %key = %c0 to %n step %c1 {
        %some = arith.cmpi slt, %key, %w : index
        scf.if %some {
          %each = "warp.map"() ({
          ^bb0(%i: index):
            %slope = memref.load %slopes[%head] : memref<?xf32>
            %at = memref.load %slopes[%key] : memref<?xf32>
            %constant = memref.load %slopes[%c0] : memref<?xf32>
            %x = arith.addf %slope, %at : f32
            %y = arith.addf %x, %constant : f32
            "warp.yield"(%y) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> !rows
        }
      }
    }
  }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-hoist-loads" = "no map reads global memory"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
