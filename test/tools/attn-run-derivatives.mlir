// Derivatives are compared with differences of @attention, at arguments that belong to it, and then with later stages.
// RUN: attn-run %inputs/derivatives/alibi-causal-softmax-backward.mlir --primal %inputs/derivatives/alibi-causal-softmax.mlir | FileCheck %s
// RUN: attn-run %inputs/derivatives/softmax-tangent.mlir --primal %inputs/derivatives/softmax.mlir | FileCheck %s --check-prefix=TANGENT
// RUN: attn-run %inputs/derivatives/alibi-causal-softmax.mlir --q-len 3 --kv-len 3 | FileCheck %s --check-prefix=SEVERAL
// RUN: attn-run %inputs/derivatives/alibi-causal-softmax-backward.mlir --primal %inputs/derivatives/alibi-causal-softmax.mlir \
// RUN:   -p 'attn-simplify,attn-outline,attn-resolve-masks,cse' --after-each | FileCheck %s --check-prefix=STAGES

// CHECK:         @attention_bwd B=2 Hq=4 Hkv=2 Sq=17 Skv=23  by differences: dq: abs {{.*}}e-{{[01][0-9]}} rel {{.*}}  dk: abs {{.*}}  dv: abs {{.*}}  darg3: abs
// CHECK-NEXT:    @attention_bwd B=2 Hq=4 Hkv=2 Sq=1 Skv=1  dq: abs 0.0e+00 rel 0.0e+00  dk
// CHECK:         PASS

// TANGENT:       @attention_jvp {{.*}} by differences: o: abs 0.0e+00 rel 0.0e+00  o_dot: abs {{.*}}e-{{[01][0-9]}}
// TANGENT:       PASS

// SEVERAL:       @attention_fwd B=2 Hq=4 Hkv=2 Sq=3 Skv=3  by differences: o: abs 0.0e+00
// SEVERAL-NEXT:  @attention B=2 Hq=4 Hkv=2 Sq=3 Skv=3  o: abs
// SEVERAL-NEXT:  @attention_fwd B=2 Hq=4 Hkv=2 Sq=3 Skv=3  o: abs {{.*}}  saved 0: abs {{.*}}  saved 1: abs
// SEVERAL-NEXT:  PASS

// STAGES-COUNT-5: @attention_bwd {{.*}} darg3: abs {{(0.0e[+]00|[0-9.]+e-1)}}
// STAGES:         PASS
