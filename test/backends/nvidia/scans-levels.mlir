// Chunks of channels' decays: threads hold their elements of k and q for all maps that read them, read two neighbouring sums at once, and
// two products of a level load their common factor once. Which of two sums is taken away from the other is the sign of a row's factor.
// RUN: attn-opt %s -p 'attn-outline{keep-hosts=false},nvidia-kernel' | attn-translate - --to cuda | FileCheck %s

// CHECK-LABEL: void __launch_bounds__(128, {{[0-9]}}) attention_chunks(
// CHECK:         uint32_t [[K:held]][
// CHECK:         [[K]][(m * {{[0-9]}} + n) * 2 + r] = attn::two<64>(
// CHECK:         ? 1.442695f : (-1.442695f);
// CHECK:         const float2 [[OWN:two[_0-9]*]] = *(const float2 *)&
// CHECK:         const float2 [[BOUNDARY:two[_0-9]*]] = *(const float2 *)&
// CHECK:         (c ? [[OWN]].y : [[OWN]].x) - (c ? [[BOUNDARY]].y : [[BOUNDARY]].x)
// CHECK:         if (warp / 2 == warp % 2) attn::multiply_both<attn::BF16, 32, 32, 64, 2, false, true>(
// CHECK:         if (warp / 2 != warp % 2) attn::multiply_both<attn::BF16, 32, 32, 64, 2, false, true>(
// CHECK:         attn::invert_triangle<32, 2>(
// CHECK-NEXT:    attn::store_inverse<32, false>(
func.func @attention(%q: tensor<?x?x?x64xbf16>, %k: tensor<?x?x?x64xbf16>, %v: tensor<?x?x?x64xbf16>, %decay: tensor<?x?x?x64xf32>, %beta: tensor<?x?x?xf32>) -> tensor<?x?x?x64xbf16> {
  %o = "attn.linear_attention"(%q, %k, %v, %decay) ({
    "attn.erase"(%k) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %share = tensor.extract %beta[%b, %h, %t] : tensor<?x?x?xf32>
      %e = arith.mulf %x, %share : f32
      "attn.yield"(%e) : (f32) -> ()
    }) {reads = "decayed"} : (tensor<?x?x?x64xbf16>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "key", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x64xbf16>, tensor<?x?x?x64xbf16>, tensor<?x?x?x64xbf16>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xbf16>
  return %o : tensor<?x?x?x64xbf16>
}
