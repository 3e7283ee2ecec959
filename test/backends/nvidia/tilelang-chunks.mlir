// Simple GLA in f16 as a TileLang program: a program for each head and block of columns scans over the chunks with the state in a
// fragment; the next chunk's rows are loaded meanwhile, and rows past the end repeat the last one.
// RUN: attn-translate --to tilelang %inputs/linear/half.mlir | FileCheck %s

// CHECK:      with T.Kernel(1, [[H:[a-z0-9_]+]], [[B:[a-z0-9_]+]], threads=128) as (block, head, batch):
// CHECK-DAG:      state = T.alloc_fragment((64, 64), "float32")
// CHECK-DAG:      k_tile = T.alloc_shared((2, 64, 64), "float16")
// CHECK-DAG:      prefix = T.alloc_shared((64,), "float32")
// CHECK:          state[i, j] = initial_state[batch, head, i, j]
// CHECK:          for chunk in T.serial(0, [[T:[a-z0-9_]+]], 64):
// CHECK-NEXT:         stage = T.alloc_var("int32", init=chunk // 64 % 2)
// CHECK-NEXT:         T.ptx_wait_group(0)
// CHECK-NEXT:         T.sync_threads()
// CHECK-NEXT:         if chunk + 64 < [[T]]:
// CHECK:                  [[LEFT:count[_0-9]*]] = T.alloc_var("int32", init=T.min([[T]] - [[ROW:first[_0-9]*]], 64))
// CHECK-NEXT:             if [[LEFT]] == 64:
// CHECK-NEXT:                 T.async_copy(q[batch, {{.*}}, [[ROW]] : [[ROW]] + 64, 0:64], q_tile[1 - stage, :, :])
// CHECK:                      k_tile[1 - stage, i, j] = k[batch, {{.*}}, [[ROW]] + T.min(i, [[LEFT]] - 1), j]

// Log decays are 0 past the end; sums of them lie in shared memory.
// CHECK:              [[G:[a-z_0-9]+]][i] = T.if_then_else(i < [[COUNT:count[_0-9]*]], T.max({{.*}}, -104.0), 0.0)
// CHECK:              T.cumsum(src=[[G]], dst=prefix, dim=0)

// What the state gives, what the chunk's own positions give, and the state after them.
// CHECK:              chunk_decay = T.alloc_var("float32", init=T.exp2(
// CHECK:              T.copy(state, [[HALF:[a-z_0-9]+]])
// CHECK-NEXT:         T.gemm({{.*}}, [[HALF]], [[O:[a-z_0-9]+]], policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
// CHECK-NEXT:         T.gemm({{.*}}, k_tile[stage, :, :], {{.*}}, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
// CHECK:              [[O]][i, j] = [[O]][i, j] * output_decay[i]
// CHECK-NEXT:         T.gemm([[P:[a-z_0-9]+]], v_tile[stage, :, :], [[O]], policy=T.GemmWarpPolicy.FullRow)
// CHECK:              if i < [[COUNT]]:
// CHECK-NEXT:             o[batch, head, chunk + i, j] = [[O]][i, j]
// CHECK:              state[i, j] = state[i, j] * chunk_decay
// CHECK-NEXT:         T.gemm(k_tile[stage, :, :], {{.*}}, state, transpose_A=True, policy=T.GemmWarpPolicy.FullRow)
// CHECK:          final_state[batch, head, 0 + i, j] = state[i, j]
