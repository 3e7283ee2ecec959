// A tanh that may be approximated keeps its flag through the derivation and the derivatives, and is one instruction on NVIDIA GPUs.
// RUN: attn-opt %s -p 'attn-simplify,attn-online-rewrite' | FileCheck %s --check-prefix=ONLINE
// RUN: attn-opt %s -p 'attn-simplify,attn-differentiate{functions=bwd}' | FileCheck %s --check-prefix=BACKWARD
// RUN: attn-translate --to cuda %s | FileCheck %s --check-prefix=CUDA
// RUN: attn-translate --to hip %s | FileCheck %s --check-prefix=HIP

// ONLINE:         "attn.step"
// ONLINE:         math.tanh %{{.*}} fastmath<afn> : f32
// BACKWARD-LABEL: @attention_bwd
// BACKWARD:       math.tanh %{{.*}} fastmath<afn> : f32
// CUDA:           const float [[X:.*]] = tanh_fast(s[{{.*}}] * 0.044194173f) * 0.5f;
// CUDA-NEXT:      const float {{.*}} = [[X]] + 0.5f;
// HIP:            float tanh_rational(float x)
// HIP:            return tanh_rational(x);
func.func @attention(%q: tensor<?x?x?x128xf16>, %k: tensor<?x?x?x128xf16>, %v: tensor<?x?x?x128xf16>) -> tensor<?x?x?x128xf16> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %scale = arith.constant 0.0883883461 : f32
      %scaled = arith.mulf %score, %scale : f32
      "attn.yield"(%scaled) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %half = arith.constant 5.000000e-01 : f32
      %x = arith.mulf %half, %s : f32
      %t = math.tanh %x fastmath<afn> : f32
      %y = arith.mulf %half, %t : f32
      %w = arith.addf %half, %y : f32
      "attn.yield"(%w) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x128xf16>, tensor<?x?x?x128xf16>, tensor<?x?x?x128xf16>) -> tensor<?x?x?x128xf16>
  return %o : tensor<?x?x?x128xf16>
}
