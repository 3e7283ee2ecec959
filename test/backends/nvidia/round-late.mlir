// Weights of 8 bits are computed in f32 before the wait for the product that reads those of the block before, and rounded after it.
// RUN: sed 's/64xf32>/64xf8E4M3FN>/g; s/-> (tensor<?x?x?x64xf8E4M3FN>/-> (tensor<?x?x?x64xbf16>/; s/%lse : tensor<?x?x?x64xf8E4M3FN>/%lse : tensor<?x?x?x64xbf16>/' %inputs/plain-softmax.mlir > %t.mlir
// RUN: attn-opt %t.mlir -p 'nvidia-warp' | FileCheck %s
// RUN: attn-opt %inputs/plain-softmax.mlir -p 'warp-round-late' | FileCheck %s --check-prefix=NONE
// NONE-NOT: warp.refused

// CHECK:       sym_name = "producer"
// CHECK:       scf.for %{{.*}} = %c1 to
// CHECK:         %[[SUMS:.*]] = "warp.mma_async"({{.*}}f8E4M3FN
// CHECK-NOT:     arith.truncf
// CHECK:         math.exp2
// CHECK-NOT:     arith.truncf
// CHECK:         "warp.mma_wait"({{.*}}) {pending = 0 : i64}
// CHECK-NEXT:    "warp.arrive"
// CHECK-NEXT:    %[[WEIGHTS:.*]] = "warp.map"() ({
// CHECK-NEXT:    ^bb0
// CHECK-NEXT:      %[[X:.*]] = tensor.extract
// CHECK-NEXT:      %[[Y:.*]] = arith.truncf %[[X]] : f32 to f8E4M3FN
// CHECK-NEXT:      "warp.yield"(%[[Y]])
// CHECK:         scf.yield {{.*}}%[[WEIGHTS]]
