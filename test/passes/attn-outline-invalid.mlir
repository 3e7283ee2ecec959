// What cannot be split is told, at its place.
// RUN: attn-opt %s -p attn-outline --split-input-file --verify-diagnostics

!t = tensor<?x?x?x8xf32>
!row = tensor<?x?x?xf32>

func.func @other_result(%q: !t) -> (!row, index) {
  %c0 = arith.constant 0 : index
  %a = "attn.row_dot"(%q, %q) : (!t, !t) -> !row
  %size = tensor.dim %q, %c0 : !t
  // expected-error @below {{attn-outline: @other_result returns a value that no attention op makes}}
  return %a, %size : !row, index
}

// -----

!t = tensor<?x?x?x8xf32>
!row = tensor<?x?x?xf32>

func.func @in_a_loop(%q: !t, %n: index) -> !row {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %a = "attn.row_dot"(%q, %q) : (!t, !t) -> !row
  %b = scf.for %i = %c0 to %n step %c1 iter_args(%r = %a) -> !row {
    // expected-error @below {{attn-outline: 'attn.row_dot' must stand directly in a func.func of one block}}
    %d = "attn.row_dot"(%q, %q) : (!t, !t) -> !row
    scf.yield %d : !row
  }
  return %b : !row
}
