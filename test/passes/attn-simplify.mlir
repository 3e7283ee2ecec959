// RUN: attn-opt %s --split-input-file -p 'attn-simplify' | FileCheck %s

// Powers become products and roots; equal expressions one; what nobody uses goes.
// CHECK-LABEL: @attention
// CHECK:       "attn.row"() ({
// CHECK-NEXT:  ^bb0(%[[S:.*]]: f32,
// CHECK-NEXT:    %[[SS:.*]] = arith.mulf %[[S]], %[[S]]
// CHECK-NEXT:    %[[SUM:.*]] = "attn.reduce"(%[[SS]]) {kind = "sum"}
// CHECK-NEXT:    %[[TWICE:.*]] = arith.addf %[[SUM]], %[[SUM]]
// CHECK-NEXT:    %[[ROOT:.*]] = math.rsqrt %[[TWICE]]
// CHECK-NEXT:    %[[P:.*]] = arith.mulf %[[S]], %[[ROOT]]
// CHECK-NEXT:    "attn.yield"(%[[P]])
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %two = arith.constant 2.0 : f32
      %power = arith.constant -0.5 : f32
      %x = math.powf %s, %two : f32
      %y = math.powf %s, %two : f32
      %a = "attn.reduce"(%x) {kind = "sum"} : (f32) -> f32
      %b_ = "attn.reduce"(%y) {kind = "sum"} : (f32) -> f32
      %c = arith.addf %a, %b_ : f32
      %r = math.powf %c, %power : f32
      %dead = math.exp %r : f32
      %n = arith.negf %s : f32
      %nn = arith.negf %n : f32
      %p = arith.mulf %nn, %r : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}

// -----

// Division by a power of two, neutral elements, and constants that fold at f32.
// CHECK-LABEL: @attention
// CHECK:       ^bb0(%[[S:.*]]: f32,
// CHECK-NEXT:    %[[C:.*]] = arith.constant 2.500000e-01 : f32
// CHECK-NEXT:    %[[P:.*]] = arith.mulf %[[S]], %[[C]]
// CHECK-NEXT:    "attn.yield"(%[[P]])
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %three = arith.constant 3.0 : f32
      %zero = arith.constant 0.0 : f32
      %four = arith.addf %one, %three : f32
      %a = arith.mulf %one, %s : f32
      %c = arith.addf %a, %zero : f32
      %d = arith.divf %c, %four : f32
      %always = arith.cmpf olt, %one, %three : f32
      %p = arith.select %always, %d, %zero : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}

// -----

// Nested clamps keep the tighter bound; max with -inf is nothing.
// CHECK-LABEL: @attention
// CHECK:       ^bb0(%[[S:.*]]: f32,
// CHECK:         %[[C:.*]] = arith.constant 2.000000e+00
// CHECK-NEXT:    %[[P:.*]] = arith.maximumf %[[S]], %[[C]]
// CHECK-NEXT:    "attn.yield"(%[[P]])
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %two = arith.constant 2.0 : f32
      %low = arith.constant 0xFF800000 : f32
      %a = arith.maximumf %s, %low : f32
      %c = arith.maximumf %a, %two : f32
      %p = arith.maximumf %one, %c : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}

// -----

// MLIR's cse is a part of the pass: rules meet equal values as one, a product is the same either way round, dead values go.
// CHECK-LABEL: @attention
// CHECK:       ^bb0(%[[S:.*]]: f32,
// CHECK-NEXT:    %[[SUM:.*]] = "attn.reduce"(%[[S]]) {kind = "sum"}
// CHECK-NEXT:    %[[E:.*]] = math.exp %[[S]]
// CHECK-NEXT:    %[[PRODUCT:.*]] = arith.mulf %[[E]], %[[SUM]]
// CHECK-NEXT:    %[[P:.*]] = arith.addf %[[PRODUCT]], %[[PRODUCT]]
// CHECK-NEXT:    "attn.yield"(%[[P]])
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %sum = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32
      %e = math.exp %s : f32
      %e2 = math.exp %s : f32
      %larger = arith.maximumf %e, %e2 : f32
      %x = arith.mulf %larger, %sum : f32
      %y = arith.mulf %sum, %e : f32
      %dead = math.log %y : f32
      %p = arith.addf %x, %y : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
