// --after-each names the first pass that changes the results. Here the bounds are wrong for blocks
// of six rows, which only the tiled program has.
// RUN: not attn-run %s --after-each -p 'canonicalize,attn-tile{block-q=6 block-kv=4},cse' 2>&1 | FileCheck %s
// RUN: not attn-run %s -p 'canonicalize,attn-tile{block-q=6 block-kv=4},cse' 2>&1 | FileCheck %s --check-prefix=END
// CHECK: {{.*}}attn-run-wrong-pass.mlir:8:1: error: results are wrong after attn-tile-rows{block-q=6 block-kv=4}: B=2 Hq=4 Hkv=2 Sq=17 Skv=23  o: abs
// END:   FAIL: an error is above 1e-09

func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %c2 = arith.constant 2 : index
  %skv = tensor.dim %k, %c2 : tensor<?x?x?x8xf32>
  %o = "attn.online"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %0 = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%0) : (i1) -> ()
    }) : () -> ()
    "attn.bounds"() ({
    ^bb0(%b: index, %h: index, %q_begin: index, %q_end: index):
      %c0 = arith.constant 0 : index
      %c6 = arith.constant 6 : index
      %rows = arith.subi %q_end, %q_begin : index
      %unlucky = arith.cmpi eq, %rows, %c6 : index
      %few = arith.minsi %q_begin, %skv : index
      %all = arith.minsi %q_end, %skv : index
      %end = arith.select %unlucky, %few, %all : index
      "attn.yield"(%c0, %c0, %c0, %end) : (index, index, index, index) -> ()
    }) : () -> ()
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      "attn.yield"() : () -> ()
    }) : () -> ()
    "attn.step"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      "attn.yield"(%s, %one) : (f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%acc) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
