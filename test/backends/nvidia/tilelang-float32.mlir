// A scan over f32 tensors as a TileLang program: tiles are taken apart in registers, their pieces are multiplied out of shared memory,
// which pieces that nothing reads any more leave to others; sums of log decays have 64 bits.
// RUN: sed 's/xf16/xf32/g' %inputs/linear/half.mlir | attn-translate --to tilelang - | FileCheck %s

// CHECK:      "tl.enable_aggressive_shared_memory_merge": True,
// CHECK-DAG:      state = T.alloc_fragment((64, 64), "float32")
// CHECK-DAG:      prefix = T.alloc_shared((64,), "float64")
// CHECK:          for chunk in T.serial(0, {{.*}}, 64):
// CHECK:              T.cumsum(src={{.*}}, dst=prefix, dim=0)

// Rows of q go to registers, in three pieces to shared memory; so does the state.
// CHECK:              [[X:x_[0-9]+]] = {{.*}}[i, j]
// CHECK-NEXT:         [[HIGH:x_[0-9]+]] = T.cast([[X]], "bfloat16")
// CHECK-NEXT:         [[REST:x_[0-9]+]] = [[X]] - T.cast([[HIGH]], "float32")
// CHECK:          T.copy({{.*}}, [[Q0:tile_shared[_0-9]*]])
// CHECK-NEXT:     T.copy({{.*}}, [[Q1:tile_shared[_0-9]*]])
// CHECK-NEXT:     T.copy({{.*}}, [[Q2:tile_shared[_0-9]*]])
// CHECK:              {{.*}} = state[i, j]
// CHECK:          T.copy({{.*}}, [[S0:tile_shared[_0-9]*]])
// CHECK-NEXT:     T.copy({{.*}}, [[S1:tile_shared[_0-9]*]])
// CHECK-NEXT:     T.copy({{.*}}, [[S2:tile_shared[_0-9]*]])
// CHECK-NEXT:     T.gemm([[Q2]], [[S0]], [[O:products[_0-9]*]], policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
// CHECK-NEXT:     T.gemm([[Q1]], [[S1]], [[O]], policy=T.GemmWarpPolicy.FullRow)
// CHECK-NEXT:     T.gemm([[Q0]], [[S2]], [[O]], policy=T.GemmWarpPolicy.FullRow)
// CHECK-NEXT:     T.gemm([[Q1]], [[S0]], [[O]], policy=T.GemmWarpPolicy.FullRow)
// CHECK-NEXT:     T.gemm([[Q0]], [[S1]], [[O]], policy=T.GemmWarpPolicy.FullRow)
// CHECK-NEXT:     T.gemm([[Q0]], [[S0]], [[O]], policy=T.GemmWarpPolicy.FullRow)

// Weights are functions of differences that are taken in 64 bits.
// CHECK:              decay_mask = T.exp2(T.cast(prefix[i] - prefix[j], "float32") * 1.4426950216293335) * 0.125

// The state is carried and added to in f32.
// CHECK:              state[i, j] = ([[OLD:x_[0-9]+]] * chunk_decay) + products_{{[0-9]+}}[i, j]
