// 8-bit values that were transposed before the kernel: a copy brings the tile of products, and nobody transposes.
// RUN: sed 's/64xf32>/64xf8E4M3FN>/g; s/-> (tensor<?x?x?x64xf8E4M3FN>/-> (tensor<?x?x?x64xbf16>/; s/%lse : tensor<?x?x?x64xf8E4M3FN>/%lse : tensor<?x?x?x64xbf16>/' %inputs/plain-softmax.mlir > %t.mlir
// RUN: sed 's/func.func @\([a-z]*\)(\(.*\) {$/func.func @\1(\2 attributes {tile.choices = {turned = 1 : i64}} {/' %t.mlir | attn-opt - -p 'nvidia-warp' | FileCheck %s

// CHECK-NOT:   warp.transpose
// CHECK:       %[[V:v_buffer]] = "warp.alloc"() : () -> memref<3x64x128xf8E4M3FN, #warp.shared<128 : i64>>
// CHECK-NEXT:  %[[FULL:.*]] = "warp.mbarrier"() : () -> !warp.barrier<3 : i64, 1 : i64>
// CHECK-NOT:   warp.transpose
// CHECK:         "warp.copy_async"({{.*}}, %v_tile, %v_full, {{.*}}) {turned} : (memref<?x?x?x64xf8E4M3FN, {{.*}}>, {{.*}}, memref<64x128xf8E4M3FN, {{.*}}
// CHECK:       }) {registers = {{.*}}, sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64} : () -> ()
// CHECK-NOT:   warp.transpose
// CHECK:         "warp.mma_async"({{.*}}) {transpose_a = false, transpose_b = true} : ({{.*}}, tensor<64x128xf8E4M3FN, {{.*}}>, memref<64x128xf8E4M3FN, {{.*}}>, i1)
