// Programs that differ fail, with the size of the error; without an error above the tolerance they pass.
// RUN: not attn-run %inputs/causal-softmax.mlir --against %inputs/plain-softmax.mlir | FileCheck %s
// RUN: attn-run %inputs/causal-softmax.mlir --against %inputs/plain-softmax.mlir --tolerance 1e3 | FileCheck %s --check-prefix=LOOSE
// RUN: attn-run %inputs/causal-softmax.mlir --against %inputs/sliding-window.mlir --q-len 6 --kv-len 6 | FileCheck %s --check-prefix=SAME
// RUN: not attn-run %inputs/causal-softmax.mlir --against %inputs/sliding-window.mlir --q-len 7 --kv-len 7 | FileCheck %s --check-prefix=ONE

// CHECK:      Sq=1 Skv=1  o: abs 0.0e+00 rel 0.0e+00  lse: abs 0.0e+00
// CHECK:      Sq=17 Skv=23  o: abs {{[1-9].*}}e+00
// CHECK:      FAIL: an error is above 1e-09
// LOOSE:      PASS
// SAME:       Sq=6 Skv=6  o: abs 0.0e+00 rel 0.0e+00  lse: abs 0.0e+00 rel 0.0e+00
// ONE:        FAIL
