// The delta rule goes through TileLang: products on tensor cores, and systems by a CUDA function, a column of the solution in a thread.
// RUN: attn-opt %inputs/linear/gated-delta.mlir -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate %inputs/linear/gated-delta.mlir --to tilelang | FileCheck %s

// PLAN-LABEL: func.func @attention(
// PLAN-SAME:    tile.schedule = {arch = "sm_90a", emitter = "tilelang", slow = "{{.*}}"
// PLAN:         "tile.solve_unit"

// CHECK:         SOLVE = r"""
// CHECK:         template <int C, bool Upper, int Columns> __device__ __forceinline__ void attn_solve_unit(const float *a, float *x) {
// CHECK-LABEL: def attention(
// CHECK:         T.import_source(SOLVE)
// CHECK:         [[A:triangle\w*]] = T.alloc_shared(([[SIZE:32|64]], {{32|64}}), "float32")
// CHECK:         T.copy({{\w+}}, [[A]])
// CHECK:         T.copy({{\w+}}, [[X:solved\w*]])
// CHECK:         T.sync_threads()
// CHECK-NEXT:    T.call_extern("handle", "attn_solve_unit<[[SIZE]], false, {{32|64}}>", T.address_of([[A]][0, 0]), T.address_of([[X]][0, 0]))
// CHECK-NEXT:    T.sync_threads()
