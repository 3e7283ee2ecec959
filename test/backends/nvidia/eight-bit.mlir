// 8-bit values are transposed by who copies them, as products sum over the columns of both factors; they have a place before and behind.
// RUN: sed 's/64xf32>/64xf8E4M3FN>/g; s/-> (tensor<?x?x?x64xf8E4M3FN>/-> (tensor<?x?x?x64xbf16>/; s/%lse : tensor<?x?x?x64xf8E4M3FN>/%lse : tensor<?x?x?x64xbf16>/' %inputs/plain-softmax.mlir > %t.mlir
// RUN: attn-opt %t.mlir -p 'nvidia-warp' | FileCheck %s
// RUN: attn-opt %t.mlir -p 'attn-online-rewrite,nvidia-numerics' | FileCheck %s --check-prefix=NUMERICS
// NUMERICS: tile.numerics = {narrow = "ocp", prefix = "wider", sub_chunk = 4 : i64, sub_chunk_keys = 1 : i64}

// CHECK:       %[[RAW:v_raw_buffer]] = "warp.alloc"() : () -> memref<2x128x64xf8E4M3FN, #warp.shared<64 : i64>>
// CHECK-NEXT:  %[[RAW_FULL:.*]] = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 1 : i64>
// CHECK-NEXT:  %[[RAW_FREE:.*]] = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 4 : i64>
// CHECK-NEXT:  %[[V:.*]] = "warp.alloc"() : () -> memref<2x64x128xf8E4M3FN, #warp.shared<128 : i64>>
// CHECK-NEXT:  %[[FULL:.*]] = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 4 : i64>
// CHECK-NEXT:  %[[FREE:.*]] = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 12 : i64>
// CHECK:         "warp.wait"(%[[RAW_FULL]], %[[STAGE:.*]]#0,
// CHECK-NEXT:    "warp.wait"(%[[FREE]], %[[STAGE]]#0,
// CHECK-NEXT:    "warp.transpose"({{.*}}) : (memref<128x64xf8E4M3FN, {{.*}}>, memref<64x128xf8E4M3FN, {{.*}}>) -> ()
// CHECK-NEXT:    "warp.fence_async"() : () -> ()
// CHECK-NEXT:    "warp.arrive"(%[[RAW_FREE]], %[[STAGE]]#0)
// CHECK-NEXT:    "warp.arrive"(%[[FULL]], %[[STAGE]]#0)
// CHECK:       }) {registers = {{.*}}, sym_name = "producer", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
// CHECK:         "warp.wait"(%[[FULL]],
// CHECK:         "warp.mma_async"({{.*}}) {transpose_a = false, transpose_b = true} : ({{.*}}, tensor<64x128xf8E4M3FN, {{.*}}>, memref<64x128xf8E4M3FN, {{.*}}>, i1)
