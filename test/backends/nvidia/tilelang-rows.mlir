// The forward of softmax as a TileLang program: tiles are loaded one block ahead, maxima and sums stay in fragments of rows, and the last
// block, which may have fewer keys, is guarded.
// RUN: attn-translate --to tilelang %inputs/softmax-f16.mlir | FileCheck %s

// CHECK:      @T.prim_func
// CHECK-NEXT: def attention(
// CHECK:          q_ptr: T.ptr,
// CHECK:          q_size2: T.int32,
// CHECK:          q_stride2: T.int64,
// CHECK:          q = T.make_tensor(q_ptr, (q_size0, q_size1, q_size2, 32), "float16", (q_stride0 // 8 * 8, {{.*}}, 1))
// CHECK:          with T.Kernel(T.ceildiv(q_size2, [[Q:[0-9]+]]), q_size1, q_size0, threads={{[0-9]+}}) as (block, head, batch):
// CHECK-DAG:          q_tile = T.alloc_shared(([[Q]], 32), "float16")
// CHECK-DAG:          k_tile = T.alloc_shared((2, 128, 32), "float16")
// CHECK-DAG:          sums = T.alloc_fragment(([[Q]], 32), "float32")
// CHECK:              first = T.alloc_var("int32", init=(T.ceildiv(q_size2, [[Q]]) - 1 - block) * [[Q]])

// Whole blocks: no guards.
// CHECK:              for [[KV:[a-z]+]] in T.serial(0, [[END:[a-z]+]], 128):
// CHECK:                  T.ptx_wait_group(0)
// CHECK:                  if [[KV]] + 128 < [[END]]:
// CHECK-NEXT:                 T.async_copy(k[batch, [[H:[a-z_]+]], [[KV]] + 128 : [[KV]] + 128 + 128, 0:32], k_tile[1 - stage, :, :])
// CHECK:                  T.gemm(q_tile, k_tile[stage, :, :], products, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
// CHECK:                  T.reduce_max(products, row_max, dim=1, clear=False)
// CHECK:                      rescale[i] =
// CHECK:                      weight[i, j] = T.cast([[W:[a-z_0-9]+]], "float16")
// CHECK-NEXT:                 terms[i, j] = [[W]]
// CHECK:                  T.reduce_sum(terms, row_sum, dim=1)
// CHECK:                      sums[i, j] = sums[i, j] * rescale[i]
// CHECK-NEXT:             T.gemm(weight, v_tile[stage, :, :], sums, policy=T.GemmWarpPolicy.FullRow)

// The last block.
// CHECK:              for {{.*}} in T.serial([[END]], {{.*}}, 128):
// CHECK:                      k_tile[0, i, j] = T.if_then_else(i < [[N:[a-z_0-9]+]], k[batch, [[H]], {{.*}} + i, j], T.float16(0.0))
// CHECK:                      weight[i, j] = T.if_then_else(j < [[N]], {{.*}}, T.float16(0.0))

// CHECK:                  if i < count:
// CHECK-NEXT:                 o[batch, head, first + i, j] = T.cast(sums[i, j] * {{.*}}, "float16")
