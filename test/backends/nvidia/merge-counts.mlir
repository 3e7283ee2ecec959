// Two rings whose tiles come together have one count; a third, which is used in a condition of its own, keeps its own.
// RUN: attn-opt %s --split-input-file -p 'warp-merge-counts,cse' | FileCheck %s

!full = !warp.barrier<2 : i64, 1 : i64>

// CHECK: scf.for {{.*}} iter_args(%[[Q:.*]] = %{{.*}}, %{{.*}} = %{{.*}}, %[[K:.*]] = %{{.*}})
// CHECK: scf.for {{.*}} iter_args(%[[COUNT:.*]] = %[[Q]], %{{.*}} = %[[Q]], %[[OTHER:.*]] = %[[K]])
// CHECK: %[[STAGE:.*]]:2 = "warp.stage"(%[[COUNT]])
// CHECK: "warp.wait"(%{{.*}}, %[[STAGE]]#0, %[[STAGE]]#1)
// CHECK-NEXT: "warp.wait"(%{{.*}}, %[[STAGE]]#0, %[[STAGE]]#1)
// CHECK: %[[THIRD:.*]]:2 = "warp.stage"(%[[OTHER]])
// CHECK: "warp.wait"(%{{.*}}, %[[THIRD]]#0, %[[THIRD]]#1)
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %a = "warp.mbarrier"() : () -> !full
  %b = "warp.mbarrier"() : () -> !full
  %c = "warp.mbarrier"() : () -> !full
  "warp.role"() ({
  ^bb0(%w: index):
    %all:3 = scf.for %t = %c0 to %n step %c1 iter_args(%x = %c0, %y = %c0, %z = %c0) -> (index, index, index) {
      %some:3 = scf.for %m = %c0 to %n step %c1 iter_args(%q = %x, %do = %y, %k = %z) -> (index, index, index) {
        %s, %p = "warp.stage"(%q) {stages = 2 : i64} : (index) -> (index, index)
        "warp.wait"(%a, %s, %p) : (!full, index, index) -> ()
        %s2, %p2 = "warp.stage"(%do) {stages = 2 : i64} : (index) -> (index, index)
        "warp.wait"(%b, %s2, %p2) : (!full, index, index) -> ()
        %s3, %p3 = "warp.stage"(%k) {stages = 2 : i64} : (index) -> (index, index)
        "warp.wait"(%c, %s3, %p3) : (!full, index, index) -> ()
        %q1 = arith.addi %q, %c1 : index
        %do1 = arith.addi %do, %c1 : index
        %k1 = arith.addi %k, %c2 : index
        scf.yield %q1, %do1, %k1 : index, index, index
      }
      scf.yield %some#0, %some#1, %some#2 : index, index, index
    }
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {counts = 1 : i64}} : () -> ()

// -----

// CHECK: warp.refused = {"warp-merge-counts" = "no loop carries a number twice"}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
    "warp.fence_async"() : () -> ()
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {counts = 1 : i64}} : () -> ()

// -----

!full = !warp.barrier<2 : i64, 1 : i64>

// Two loops that grow their numbers alike, as often as each of them runs, have different ones.
// CHECK: warp.refused = {"warp-merge-counts" = "no loop carries a number twice"}
"warp.kernel"() ({
^bb0(%n: index, %m: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %a = "warp.mbarrier"() : () -> !full
  %b = "warp.mbarrier"() : () -> !full
  "warp.role"() ({
  ^bb0(%w: index):
    %all:2 = scf.for %t = %c0 to %n step %c1 iter_args(%x = %c0, %y = %c0) -> (index, index) {
      %first = scf.for %i = %c0 to %n step %c1 iter_args(%q = %x) -> (index) {
        %s, %p = "warp.stage"(%q) {stages = 2 : i64} : (index) -> (index, index)
        "warp.wait"(%a, %s, %p) : (!full, index, index) -> ()
        %q1 = arith.addi %q, %c1 : index
        scf.yield %q1 : index
      }
      %second = scf.for %i = %c0 to %m step %c1 iter_args(%k = %y) -> (index) {
        %s, %p = "warp.stage"(%k) {stages = 2 : i64} : (index) -> (index, index)
        "warp.wait"(%b, %s, %p) : (!full, index, index) -> ()
        %k1 = arith.addi %k, %c1 : index
        scf.yield %k1 : index
      }
      scf.yield %first, %second : index, index
    }
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {counts = 1 : i64}} : () -> ()
