// Mistakes are reported with their place, without a traceback; exit code 1.
// RUN: not attn-run %s 2>&1 | FileCheck %s
// RUN: not attn-run %s --function other 2>&1 | FileCheck %s --check-prefix=FUNCTION
// RUN: not attn-run %inputs/alibi-signed.mlir --capture-size 2 2>&1 | FileCheck %s --check-prefix=BOUNDS
// RUN: not attn-run %inputs/causal-softmax.mlir --heads 3 --kv-heads 2 2>&1 | FileCheck %s --check-prefix=HEADS
// RUN: not attn-run %inputs/causal-softmax.mlir --q-len 1,2,3 --kv-len 4,5 2>&1 | FileCheck %s --check-prefix=LENGTHS
// RUN: not attn-run %inputs/causal-softmax.mlir --ints 4 2>&1 | FileCheck %s --check-prefix=INTS
// RUN: not attn-run %inputs/causal-softmax.mlir --block 4,x 2>&1 | FileCheck %s --check-prefix=BLOCK
// RUN: not attn-run %inputs/causal-softmax.mlir --split 0 2>&1 | FileCheck %s --check-prefix=SPLIT
// RUN: not attn-run %inputs/causal-softmax.mlir -p attn-tile 2>&1 | FileCheck %s --check-prefix=PASS
// RUN: not attn-run %inputs/causal-softmax.mlir -p attn-tyle 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// RUN: not attn-run %inputs/causal-softmax.mlir --against %inputs/relu.mlir 2>&1 | FileCheck %s --check-prefix=RESULTS
// RUN: not attn-run %t.missing.mlir 2>&1 | FileCheck %s --check-prefix=MISSING
// RUN: not attn-run %s --no-such 2>&1 | FileCheck %s --check-prefix=OPTION

// CHECK-NOT: Traceback
// CHECK:     {{.*}}attn-run-errors.mlir:31:8: error: the evaluator has no rule for 'math.acosh': {{%.+}} = math.acosh
// FUNCTION:  attn-run-errors.mlir{{.*}}error: no function @other with a body; found @attention
// BOUNDS:    alibi-signed.mlir:10:16: error: 'tensor.extract' reads index 2 of dimension 0, which has size 2
// HEADS:     attn-run: error: sizes must be positive, and heads a multiple of kv-heads, got B=2 Hq=3 Hkv=2
// LENGTHS:   attn-run: error: --q-len has 3 lengths and --kv-len 2: give as many, or one
// INTS:      attn-run: error: --ints takes LOW:HIGH with LOW < HIGH, got '4'
// BLOCK:     attn-run: error: --block takes numbers, got '4,x'
// SPLIT:     attn-run: error: --split must be positive, got 0
// PASS:      causal-softmax.mlir:2:14: error: attn-tile-rows: 'attn.attention' is not in online form
// UNKNOWN:   attn-run: error: unknown pass 'attn-tyle'; did you mean 'attn-tile'?
// RESULTS:   causal-softmax.mlir:1:1: error: @attention has 2 results, the reference 1
// MISSING:   .missing.mlir: error: cannot read the file: No such file or directory
// OPTION:    attn-run: error: unrecognized arguments: --no-such
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %x: f32) -> f32 {
  %o = math.acosh %x : f32
  return %o : f32
}
