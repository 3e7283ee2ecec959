// A score mod changes the scalar code of a kernel and nothing else: products, loads, shared memory and barriers are the same lines.
// RUN: sed s/x64xf32/x64xf16/g %inputs/causal-softmax.mlir | attn-translate --to hip - | sed -E 's/_[0-9]+//g' > %t.plain
// RUN: sed s/x64xf32/x64xf16/g %inputs/softcap.mlir | attn-translate --to hip - | sed -E 's/_[0-9]+//g' > %t.capped
// RUN: not diff -u %t.plain %t.capped | FileCheck %s
// RUN: grep -E 'product_f16|barrier|keep_|load_|rows_of|fetch|rescale\(|store_row|ATTN_KERNEL|__restrict__' %t.plain > %t.frame
// RUN: grep -E 'product_f16|barrier|keep_|load_|rows_of|fetch|rescale\(|store_row|ATTN_KERNEL|__restrict__' %t.capped | diff %t.frame -

// CHECK:     +static __device__ __forceinline__ float tanh_rational(float x)
// CHECK:     tanh_rational(s[n][r] * 0.00625f)
// CHECK-NOT: {{product_f16|barrier|keep_|load_|fetch|store_row}}
