// Scans with rows of o: pairs q k^T become weights in shared memory, the state is rounded to a first factor in registers, and o^T leaves
// through the memory of v. Products fly where nothing waits for them. Tiles of a chunk come on one barrier and are given back together, but
// v, and numbers of positions are waited for where the first product is on its way.
// DEFINE: %{chunks} = attn-simplify,attn-apply-mods,attn-outline{keep-hosts=false},nvidia-kernel,warp-assign-layouts
// RUN: attn-opt %inputs/linear/half.mlir -p '%{chunks},canonicalize,cse' | FileCheck %s
// RUN: attn-opt %inputs/linear/half.mlir -p '%{chunks},canonicalize,cse,warp-specialize,warp-delay-waits' | FileCheck %s --check-prefix=LATE

// CHECK:      "warp.kernel"
// CHECK:        %[[FULL:.*]] = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 1 : i64>
// CHECK:        %[[FREE:.*]] = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 4 : i64>
// CHECK:        %[[V_FREE:.*]] = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 1 : i64>
// CHECK:        %[[MADE:.*]] = "warp.mbarrier"() : () -> !warp.barrier<6 : i64, {{.*}}>
// CHECK:        %[[STATES:.*]] = memref.transpose %{{.*}} (d0, d1, d2, d3) -> (d0, d1, d3, d2)
// CHECK:        %[[P:.*]] = "warp.alloc"() : () -> memref<1x64x64xf16, #warp.shared<128 : i64>>
// CHECK:        %[[INITIAL:.*]] = "warp.load"
// CHECK:        scf.for {{.*}} iter_args(%[[STATE:.*]] = %[[INITIAL]]
// CHECK:          "warp.wait"(%[[FREE]]
// CHECK:          "warp.arrive_expect"(%[[FULL]], {{.*}}) {bytes = 24576 : i64}
// CHECK:          "warp.wait"(%[[V_FREE]]
// CHECK:          "warp.wait"(%[[FULL]]
// CHECK:          %[[SCORES:.*]] = "warp.mma_async"({{.*}}) {transpose_a = false, transpose_b = true}
// CHECK:          "warp.wait"(%[[MADE]]
// CHECK:          "warp.write"
// CHECK-NEXT:     "warp.fence_async"
// CHECK:          tensor.extract %[[STATE]]
// CHECK-NEXT:     arith.truncf
// CHECK:          "warp.mma_async"({{.*}}) {transpose_a = false, transpose_b = true}
// The memory of v of the chunk before is given back.
// CHECK:          scf.if
// CHECK:            "warp.store_wait"
// CHECK:            "warp.arrive"(%[[V_FREE]]
// CHECK:          "warp.mma_async"({{.*}}) {transpose_a = true, transpose_b = true}
// CHECK:          "warp.read_transposed"
// CHECK:          "warp.mma_async"({{.*}}) {transpose_a = false, transpose_b = false}
// CHECK:          "warp.write_transposed"(%{{.*}}, %[[OWN:.*]]) :
// CHECK:          "warp.store_async"(%[[OWN]]
// CHECK-NEXT:     "warp.store_commit"

// The state's product flies while rows leave.
// LATE:      "warp.mma_async"({{.*}}) {transpose_a = true, transpose_b = true}
// LATE:      "warp.mma_async"({{.*}}) {transpose_a = false, transpose_b = false}
// LATE:      "warp.mma_wait"({{.*}}) {pending = 1 : i64}
// LATE:      "warp.store_async"
// LATE:      "warp.mma_wait"({{.*}}) {pending = 0 : i64}
// LATE-NEXT: "warp.arrive"
