// A scheduled kernel runs in several schedules and gives what its function gives; what is wrong with a schedule is reported where it stands.
// RUN: attn-run %inputs/warp/causal-forward.mlir | FileCheck %s
// RUN: %PYTHON -c "print(open(r'%inputs/warp/causal-forward.mlir').read().replace('\"warp.fence_async\"() : () -> ()', ''))" > %t.fence
// RUN: not attn-run %t.fence --q-len 70 --kv-len 70 2>&1 | FileCheck %s --check-prefix=FENCE
// RUN: %PYTHON -c "print(open(r'%inputs/warp/causal-forward.mlir').read().replace('bytes = 16384', 'bytes = 8192'))" > %t.bytes
// RUN: not attn-run %t.bytes --q-len 70 --kv-len 70 2>&1 | FileCheck %s --check-prefix=BYTES
// RUN: %PYTHON -c "print(open(r'%inputs/warp/causal-forward.mlir').read().replace('@attention', '@other'))" > %t.other
// RUN: not attn-run %t.other 2>&1 | FileCheck %s --check-prefix=OTHER

// CHECK:      B=2 Hq=4 Hkv=2 Sq=1 Skv=1  o: abs
// CHECK:      PASS
// CHECK-NEXT: @causal_forward B=2 Hq=4 Hkv=2 Sq=1 Skv=1  o: abs {{.*}} lse: abs {{.*}} in 8 schedules
// CHECK-NEXT: @causal_forward B=2 Hq=4 Hkv=2 Sq=17 Skv=23  o: abs
// CHECK-NEXT: @causal_forward B=2 Hq=4 Hkv=2 Sq=23 Skv=17  o: abs
// CHECK-NEXT: @causal_forward B=2 Hq=4 Hkv=2 Sq=40 Skv=40  o: abs
// CHECK-NEXT: PASS

// FENCE: error: missing fence: what line {{.*}} writes needs 'warp.fence_async' before an asynchronous access

// BYTES: error: {{read before full: is not ordered behind what line .* writes|deadlock}}

// OTHER: error: nothing to compare with: there is no function @attention to run
