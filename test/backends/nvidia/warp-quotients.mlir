// Elements of a row that share a reciprocal: all divisors, then quotients of four at a time, then what is made of them.
// RUN: attn-translate --to warp-cuda %s | FileCheck %s

!tile = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// CHECK: void quotients_4(float a, float least, const float (&x)[4], float (&quotient)[4])
// CHECK: // role all
// CHECK: for (int [[G:.*]] = 0; [[G]] < 32; [[G]] += 8) {
// CHECK: for (int [[H:.*]] = 0; [[H]] < 2; ++[[H]]) {
// CHECK-NEXT: float [[D:.*]][4], [[Q:.*]][4];
// CHECK: for (int [[K:.*]] = 0; [[K]] < 4; ++[[K]]) {
// CHECK-NEXT: const int r = [[G]] + 2 * [[H]] + [[K]] / 2 * 4 + [[K]] % 2;
// CHECK-NEXT: const float [[X:.*]] = exp2f({{.*}}[r]);
// CHECK-NEXT: [[D]][[[K]]] = [[X]];
// CHECK: quotients_4({{.*}}, {{.*}}, [[D]], [[Q]]);
// CHECK: for (int [[K]] = 0; [[K]] < 4; ++[[K]]) {
// CHECK-NEXT: const int r =
// CHECK-NEXT: const float [[Z:.*]] = [[Q]][[[K]]] * {{.*}};
// A map that masks elements divides each for itself: NaN of one would reach the others.
// CHECK: for (int r = 0; r < 32; ++r) {
// CHECK: = {{.*}} / {{.*}};
// CHECK: ? {{.*}} : 0.0f;
"warp.kernel"() ({
^bb0(%n: index, %o: memref<?x?x?x64xf32>):
  %c0 = arith.constant 0 : index
  %above = arith.constant 4.65661287E-10 : f32
  %one = arith.constant 1.0 : f32
  %two = arith.constant 2.0 : f32
  %zero = arith.constant 0.0 : f32
  "warp.role"() ({
  ^bb0(%w: index):
    %scores = "warp.load"(%o, %c0, %c0, %c0) : (memref<?x?x?x64xf32>, index, index, index) -> !tile
    %weights = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %scores[%i, %j] : !tile
      %e = math.exp2 %s : f32
      %d = arith.addf %e, %above : f32
      %m = arith.minimumf %d, %one : f32
      %q = arith.divf %above, %m {gpu.shared = 4 : i64} : f32
      %p = arith.mulf %q, %two : f32
      "warp.yield"(%p) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !tile
    "warp.store"(%weights, %o, %c0, %c0, %c0) : (!tile, memref<?x?x?x64xf32>, index, index, index) -> ()
    %masked = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %scores[%i, %j] : !tile
      %d = arith.addf %s, %above : f32
      %m = arith.minimumf %d, %one : f32
      %q = arith.divf %above, %m {gpu.shared = 4 : i64} : f32
      %seen = arith.cmpi slt, %j, %n : index
      %p = arith.select %seen, %q, %zero : f32
      "warp.yield"(%p) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !tile
    "warp.store"(%masked, %o, %c0, %c0, %c0) : (!tile, memref<?x?x?x64xf32>, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
