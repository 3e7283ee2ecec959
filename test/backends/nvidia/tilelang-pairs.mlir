// The backward of softmax: weights of pairs lie in fragments, those for dq also in shared memory, whose product is added by atomic operations.
// What belongs to a query is read once for all keys. (Names of arguments are lost in the text between the tools.)
// RUN: attn-opt %inputs/softmax-f16.mlir -p 'attn-recover-rows,attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' | attn-translate --to tilelang - | FileCheck %s

// Sums over columns of a tile, without products.
// CHECK:      def attention_bwd_0_row_dot(
// CHECK:              T.reduce_sum({{.*}}, row_sum, dim=1)

// Elements: no tiles at all.
// CHECK:      def attention_bwd_1_elements(
// CHECK-NOT:      alloc_shared
// CHECK:          for i in T.Parallel(128):

// CHECK:      def attention_bwd_2_pairs(
// CHECK:          with T.Kernel(T.ceildiv(arg1_size2, chunk), arg1_size1, arg1_size0, threads={{[0-9]+}}) as (block, head, batch):
// CHECK:              for kv in T.serial(begin, {{.*}}, [[K:[0-9]+]]):
// CHECK:                  for member in T.serial(
// CHECK:                      for [[ROW:[a-z_0-9]+]] in T.serial({{.*}}, {{.*}}, [[N:[0-9]+]]):
// CHECK:                          for j in T.Parallel([[N]]):
// CHECK:                              [[STAGED:[a-z_0-9]+]][j] = arg{{[0-9]}}[batch, {{.*}}, {{.*}}]
// CHECK:                          for i, j in T.Parallel([[K]], [[N]]):
// CHECK:                              [[DS:[a-z_0-9]+]][i, j] = T.if_then_else({{.*}}i < count, {{.*}}, T.float16(0.0))
// CHECK:                          T.copy([[DS]], [[SHARED:[a-z_0-9]+]])
// CHECK:                          T.gemm([[SHARED]], arg1_tile, [[DQ:[a-z_0-9]+]], transpose_A=True, {{.*}}, clear_accum=True)
// CHECK:                              T.atomic_add({{[a-z0-9]+}}[block, batch, {{.*}}, [[ROW]] + i, j], [[DQ]][i, j])
