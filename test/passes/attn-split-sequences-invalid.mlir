// RUN: attn-opt %s -p 'attn-split-sequences{segment=96}' --split-input-file --verify-diagnostics

!q = tensor<?x?x?x16xf32>
!v = tensor<?x?x?x8xf32>
func.func @attention(%q: !q, %k: !q, %v: !v) {
  // expected-error @below {{attn-split-sequences: states every 64 positions do not divide segments of 96}}
  %o, %states = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["states"], interval = 64 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 1, 0>}
    : (!q, !q, !v) -> (!v, !v)
  return
}
