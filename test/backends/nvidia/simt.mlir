// Kernels over rows without matrix products become plain CUDA: sixteen lanes share a row of 128 columns, eight at once.
// RUN: attn-opt %s -p 'attn-tile{block-q=128},canonicalize,cse,tile-schedule{target=nvidia}' | FileCheck %s

!t = tensor<?x?x?x128xf16>

// CHECK-LABEL: func.func @row_dot(
// CHECK-SAME:    tile.schedule = {arch = "sm_90a", deterministic = 0 : i64, emitter = "simt", lanes = 16 : i64, threads = 256 : i64, vector = 8 : i64}
func.func @row_dot(%a: !t, %b: !t) -> tensor<?x?x?xf32> {
  %r = "attn.row_dot"(%a, %b) : (!t, !t) -> tensor<?x?x?xf32>
  return %r : tensor<?x?x?xf32>
}

// A number for each row: one thread each.
// CHECK-LABEL: func.func @rows(
// CHECK-SAME:    emitter = "simt", lanes = 1 : i64, threads = 128 : i64, vector = 1 : i64
func.func @rows(%m: tensor<?x?x?xf32>) -> tensor<?x?x?xf32> {
  %w = "attn.elements"(%m) ({
    "attn.element"() ({
    ^bb0(%b: index, %h: index, %i: index):
      %x = tensor.extract %m[%b, %h, %i] : tensor<?x?x?xf32>
      %e = math.exp %x : f32
      "attn.yield"(%e) : (f32) -> ()
    }) : () -> ()
  }) : (tensor<?x?x?xf32>) -> none
  %r = "attn.collect"(%w) {weight = 0} : (none) -> tensor<?x?x?xf32>
  return %r : tensor<?x?x?xf32>
}
