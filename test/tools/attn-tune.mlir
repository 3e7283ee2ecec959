// Schedules are ranked by the model of a chip, which need not be there; what is measured is printed beside it.
// RUN: attn-tune %s --device cuda --arch sm_90a --function attention_bwd --q-len 4096 --dry-run | FileCheck %s
// RUN: attn-tune %s --device hip-emulated --dry-run | FileCheck %s --check-prefix=AMD
// RUN: attn-tune %s --q-len 33 --heads 1 --top 2 --threads 1 | FileCheck %s --check-prefix=CPU
// RUN: not attn-tune %s --device hip-emulated 2>&1 | FileCheck %s --check-prefix=EMULATED
// RUN: not attn-tune %t.missing.mlir 2>&1 | FileCheck %s --check-prefix=MISSING
// RUN: not attn-tune %s --no-such 2>&1 | FileCheck %s --check-prefix=OPTION

// CHECK-LABEL: attention_bwd_2_pairs: 10 of 12 schedules fit
// CHECK-NEXT:  left out: 2 registers
// CHECK-NEXT:  rank predicted ms  bound by       candidate
// CHECK-NEXT:     1 {{ +[0-9.]+}}  matrix         emitter=hopper block_q={{[0-9]+}} block_kv={{[0-9]+}} stages={{[12]}}

// AMD-LABEL:   attention: {{[0-9]}} of 7 schedules fit
// AMD:         block_q=128 block_kv=64

// CPU-LABEL:   attention: 30 of 30 schedules fit
// CPU:         rank  measured ms predicted ms model rank  bound by       candidate
// CPU:         (untuned)
// CPU:         rank correlation (Spearman):
// CPU:         chosen: block_q=

// EMULATED:    attn-tune: error: nothing can be measured: 'hip-emulated' runs kernels on the CPU
// MISSING:     .missing.mlir: error: cannot read the file: No such file or directory
// OPTION:      attn-tune: error: unrecognized arguments: --no-such

!t = tensor<?x?x?x64xbf16>

func.func @attention(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
