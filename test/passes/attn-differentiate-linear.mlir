// The gradients of a linear attention are linear attentions: of do and v for q, against its direction for k and v.
// RUN: attn-opt %s -p 'attn-differentiate' | FileCheck %s
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=q only=true}' | FileCheck %s --check-prefix=ONLY
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=g only=true interval=128}' | FileCheck %s --check-prefix=INTERVAL
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=g only=true interval=32 channel-interval=16 crossing=true},attn-chunk-rewrite' | FileCheck %s --check-prefix=CROSSING
// RUN: attn-opt %inputs/linear/half.mlir -p 'attn-differentiate' | FileCheck %s --check-prefix=HALF

// RUN: attn-opt %inputs/linear/simple-gla.mlir -p 'attn-differentiate{functions=bwd only=true}' | FileCheck %s --check-prefix=SCALE
// RUN: attn-opt %inputs/linear/mamba2.mlir -p 'attn-differentiate{functions=bwd only=true}' | FileCheck %s --check-prefix=ROWS

// Values times dt of their positions: scans that read v multiply its rows, wherever it stands; the chain rule has dv of what o is made of.
// ROWS-NOT:     attn.elements
// ROWS:         "attn.linear_attention"(%do, %v, %k, {{.*}}, %q) ({
// ROWS-NEXT:      "attn.key"
// ROWS:           tensor.extract %[[DT:.*]][%{{.*}}, %{{.*}}, %{{.*}}]
// ROWS-NEXT:      arith.mulf
// ROWS:         "attn.linear_attention"(%v, %do, %q, {{.*}}, %k) ({
// ROWS-NEXT:      "attn.query"
// ROWS:           tensor.extract %[[DT]]
// ROWS-NEXT:      arith.mulf
// ROWS:         %[[DV:.*]] = "attn.linear_attention"(%k, %q, %do, {{[^,]*}}) ({
// ROWS-NEXT:      "attn.decay"
// ROWS:         "attn.elements"(%v)
// ROWS:           tensor.extract %[[DV]]

// A scale of q is a factor of all gradients: no tensor is scaled. The gradient of the last state, which dk and dv begin with, lacks it.
// SCALE-NOT:     attn.elements
// SCALE:         "attn.linear_attention"(%do, %v, %k, {{.*}}, %q) ({
// SCALE-NEXT:      "attn.query"
// SCALE:         "attn.linear_attention"(%v, %do, %q, {{.*}}, %d_final_state, %k) ({
// SCALE-NEXT:      "attn.key"
// SCALE:         "attn.linear_attention"(%k, %q, %do, {{.*}}, %d_final_state) ({
// SCALE-NEXT:      "attn.key"
// SCALE-NOT:     attn.elements
// RUN: sed -e 's/x16xf32>/x16xbf16>/g' -e 's/x8xf32>/x8xbf16>/g' %inputs/linear/mamba2.mlir | attn-opt -p 'attn-differentiate{functions=bwd only=true}' | FileCheck %s --check-prefix=SUMS
// RUN: sed -e 's/x16xf32>/x16xf16>/g' -e 's/x8xf32>/x8xf16>/g' %inputs/linear/mamba2.mlir | attn-opt -p 'attn-differentiate{functions=bwd only=true}' | FileCheck %s --check-prefix=HALF-SUMS

// In bf16 gradients of numbers that all positions read have states more often.
// SUMS-COUNT-2: interval = 256 : i64
// HALF-SUMS-COUNT-2: interval = 512 : i64
// HALF-COUNT-2: interval = 512 : i64
// HALF:         "attn.decay_gradient"({{.*}}) {interval = 512 : i64, rows = 64 : i64}
// Without differences: all three know it, and chunks are intervals.
// CROSSING-COUNT-2: chunk = 32 : i64, crossing,
// CROSSING:         "attn.decay_gradient"({{.*}}) {crossing, interval = 32 : i64, rows = 16 : i64}
// INTERVAL-COUNT-2: interval = 128 : i64
// INTERVAL:         "attn.decay_gradient"({{.*}}) {interval = 128 : i64, rows = 16 : i64}

// CHECK-LABEL: func.func @attention_fwd(
// CHECK:         %[[RESULTS:.*]]:2 = "attn.linear_attention"
// CHECK:         return %[[RESULTS]]#0, %[[RESULTS]]#1
// CHECK-LABEL: func.func @attention_bwd(%q: {{.*}}, %k: {{.*}}, %v: {{.*}}, %g: {{.*}}, %state: {{.*}}, %slope: {{.*}}, %o: {{.*}}, %final_state: {{.*}}, %do: {{.*}}, %d_final_state: {{.*}}) -> (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x16x8xf32>, tensor<?xf32>)
// CHECK:         %[[DQ:.*]]:3 = "attn.linear_attention"(%do, %v, %k, %g, %state, %q) ({
// CHECK:           "attn.decay"
// CHECK:         direction = "forward", heads = 0 : i64, interval = 64 : i64{{.*}} outputs = ["products", "states"]{{.*}} state = "vk"
// CHECK:         %[[DK:.*]]:3 = "attn.linear_attention"(%v, %do, %q, %g, %d_final_state, %k) ({
// CHECK:         direction = "backward", heads = 1 : i64, interval = 64 : i64{{.*}} outputs = ["products", "states"]{{.*}} state = "vk"
// CHECK:         %[[DV:.*]]:2 = "attn.linear_attention"(%k, %q, %do, %g, %d_final_state) ({
// CHECK:         direction = "backward", heads = 2 : i64{{.*}} outputs = ["final_state"]{{.*}} state = "kv"
// CHECK:         %[[DG:.*]] = "attn.decay_gradient"(%[[DQ]]#1, %[[DK]]#1, %[[DQ]]#2, %[[DK]]#2) {interval = 64 : i64, rows = 16 : i64}
// CHECK:         %[[OF_DECAYS:.*]] = "attn.elements"(%[[DG]])
// CHECK:         %[[OF_HEADS:.*]] = "attn.collect"(%[[OF_DECAYS]]) {weight = 0 : i64}
// CHECK:         %[[OF_G:.*]] = "attn.head_sum"(%[[OF_HEADS]], %g)
// CHECK:         %[[OF_SLOPE:.*]] = "attn.scatter"(%[[OF_DECAYS]], %slope)
// CHECK:         %[[OF_Q:.*]] = "attn.head_sum"(%[[DQ]]#0, %q)
// CHECK:         %[[OF_K:.*]] = "attn.head_sum"(%[[DK]]#0, %k)
// CHECK:         return %[[OF_Q]], %[[OF_K]], %[[DV]]#0, %[[OF_G]], %[[DV]]#1, %[[OF_SLOPE]]

// What nothing asks for is not computed.
// ONLY-NOT:   func.func @attention(
// ONLY:       "attn.linear_attention"(%do, %v, %k, %g, %state)
// ONLY:       outputs = []
// ONLY-NOT:   "attn.linear_attention"
// ONLY:       return
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?xf32> loc("g"), %initial: tensor<?x?x16x8xf32> loc("state"), %slope: tensor<?xf32> loc("slope")) -> (tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>) {
  %o, %final_state = "attn.linear_attention"(%q, %k, %v, %decay, %initial) ({
    "attn.decay"() ({
    ^bb0(%g: f32, %b: index, %h: index, %t: index, %d: index):
      %a = tensor.extract %slope[%h] : tensor<?xf32>
      %y = arith.mulf %g, %a : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["final_state"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x16x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>)
  return %o, %final_state : tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>
}
