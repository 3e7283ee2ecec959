// A backward whose keys come in shards: sums over keys that come first, what each shard adds, and what counts once.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd only=true},attn-cut-backward{part=sums}' | FileCheck %s --check-prefix=SUMS
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd only=true},attn-cut-backward{part=pairs}' | FileCheck %s --check-prefix=PAIRS
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd only=true},attn-cut-backward{part=rows}' | FileCheck %s --check-prefix=ROWS

// SUMS-LABEL:  func.func @attention_bwd(
// SUMS:          %[[SUM:.*]]:2 = "attn.attention"(
// SUMS-NOT:      "attn.pairs"
// SUMS:          return %[[SUM]]#1 : tensor<?x?x?xf32>

// The sum is an argument now, and the gradient of the sink has no summand of pairs.
// PAIRS-LABEL: func.func @attention_bwd(
// PAIRS-SAME:    -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) attributes {attn.results = array<i64: 0, 1, 2>, attn.stages = 1 : i64}
// PAIRS-NOT:     "attn.attention"
// PAIRS:         "attn.pairs"

// ROWS-LABEL:  func.func @attention_bwd(
// ROWS-SAME:     -> tensor<?xf32> attributes {attn.results = array<i64: 3>, attn.stages = 1 : i64}
// ROWS-NOT:      "attn.pairs"
// ROWS:          "attn.scatter"
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %sink: tensor<?xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %shifted = arith.subf %s, %m : f32
      %e = math.exp %shifted : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %extra = tensor.extract %sink[%h] : tensor<?xf32>
      %total = arith.addf %l, %extra : f32
      %p = arith.divf %e, %total : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
