// What a function of pairs, elements or row products must look like.
// RUN: attn-opt %s -p attn-tile --split-input-file --verify-diagnostics

!t = tensor<?x?x?x8xf32>
func.func @two(%a: !t, %b: !t) -> (tensor<?x?x?xf32>, tensor<?x?x?xf32>) {
  %0 = "attn.row_dot"(%a, %b) : (!t, !t) -> tensor<?x?x?xf32>
  // expected-error @below {{attn-tile-sums: the function holds several ops to make kernels of; run attn-outline first}}
  %1 = "attn.row_dot"(%a, %a) : (!t, !t) -> tensor<?x?x?xf32>
  return %0, %1 : tensor<?x?x?xf32>, tensor<?x?x?xf32>
}

// -----

!t = tensor<?x?x?x8xf32>
func.func @argument(%a: !t, %b: !t) -> (tensor<?x?x?xf32>, !t) {
  // expected-error @below {{attn-tile-sums: the function of 'attn.row_dot' returns something else, too; run attn-outline first}}
  %0 = "attn.row_dot"(%a, %b) : (!t, !t) -> tensor<?x?x?xf32>
  return %0, %a : tensor<?x?x?xf32>, !t
}

// -----

!t = tensor<?x?x?x8xf32>
func.func @made(%a: !t) -> tensor<?x?x?xf32> {
  %c = arith.constant 1 : index
  %b = tensor.empty(%c, %c, %c) : !t
  // expected-error @below {{attn-tile-sums: tensors of 'attn.row_dot' must be arguments of the function; run attn-outline first}}
  %0 = "attn.row_dot"(%a, %b) : (!t, !t) -> tensor<?x?x?xf32>
  return %0 : tensor<?x?x?xf32>
}

// -----

!t = tensor<?x?x?x8xf32>
module {
  %a = ub.poison : !t
  // expected-error @below {{attn-tile-sums: 'attn.row_dot' must stand directly in a func.func}}
  %0 = "attn.row_dot"(%a, %a) : (!t, !t) -> tensor<?x?x?xf32>
}

// -----

!t = tensor<?x?x?x8xf32>
func.func private @kernel(%a: !t, %b: !t) -> tensor<?x?x?xf32> {
  %0 = "attn.row_dot"(%a, %b) : (!t, !t) -> tensor<?x?x?xf32>
  return %0 : tensor<?x?x?xf32>
}
func.func @host(%a: !t) -> tensor<?x?x?xf32> {
  // expected-error @below {{attn-tile-sums: @kernel becomes a kernel of memrefs; run attn-outline{keep-hosts=false} first}}
  %0 = call @kernel(%a, %a) : (!t, !t) -> tensor<?x?x?xf32>
  return %0 : tensor<?x?x?xf32>
}
