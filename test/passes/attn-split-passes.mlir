// The mean distance to the mean takes two passes over keys: the first gives the sum and the count, which the second reads.
// RUN: attn-opt %s -p 'attn-split-passes{part=first}' | FileCheck %s --check-prefix=FIRST
// RUN: attn-opt %s -p 'attn-split-passes{part=last}' | FileCheck %s --check-prefix=LAST

// FIRST:       "attn.row"
// FIRST:         %[[SUM:.*]] = "attn.reduce"(%{{.*}}) {kind = "sum"}
// FIRST:         %[[COUNT:.*]] = "attn.reduce"(%{{.*}}) {kind = "sum"}
// FIRST-NOT:     math.absf
// FIRST:         "attn.yield"(%{{.*}}, %[[SUM]], %[[COUNT]])
// FIRST:       outputs = ["pass_0", "pass_1"]

// LAST:        func.func @attention({{.*}}, %[[SUMS:.*]]: tensor<?x?x?xf32>, %[[COUNTS:.*]]: tensor<?x?x?xf32>)
// LAST:          tensor.extract %[[SUMS]][%{{.*}}, %{{.*}}, %{{.*}}] : tensor<?x?x?xf32>
// LAST:          math.absf
// LAST:          "attn.reduce"
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %sum = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32
      %count = "attn.reduce"(%one) {kind = "sum"} : (f32) -> f32
      %mean = arith.divf %sum, %count : f32
      %centred = arith.subf %s, %mean : f32
      %distance = math.absf %centred : f32
      %total = "attn.reduce"(%distance) {kind = "sum"} : (f32) -> f32
      %more = arith.addf %total, %one : f32
      %p = arith.divf %centred, %more : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
