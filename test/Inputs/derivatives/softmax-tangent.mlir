func.func @attention_jvp(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x32xf32>,
    %q_dot: tensor<?x?x?x64xf32>, %k_dot: tensor<?x?x?x64xf32>, %v_dot: tensor<?x?x?x32xf32>) -> (tensor<?x?x?x32xf32>, tensor<?x?x?x32xf32>) {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.product"(%q_dot, %k) : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> ()
    "attn.product"(%q, %k_dot) : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> ()
    "attn.term"(%v) {output = 1 : i64} : (tensor<?x?x?x32xf32>) -> ()
    "attn.term"(%v_dot) {output = 1 : i64} : (tensor<?x?x?x32xf32>) -> ()
    "attn.score"() ({
    ^bb0(%x: f32, %x1: f32, %x2: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %scale = arith.constant 0.125 : f32
      %s = arith.mulf %x, %scale : f32
      %x_dot = arith.addf %x1, %x2 : f32
      %s_dot = arith.mulf %x_dot, %scale : f32
      "attn.yield"(%s, %s_dot) : (f32, f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %s_dot: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %shifted = arith.subf %s, %m : f32
      %e = math.exp %shifted : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      %e_dot = arith.mulf %e, %s_dot : f32
      %l_dot = "attn.reduce"(%e_dot) {kind = "sum"} : (f32) -> f32
      %mean = arith.divf %l_dot, %l : f32
      %centred = arith.subf %s_dot, %mean : f32
      %p_dot = arith.mulf %p, %centred : f32
      "attn.yield"(%p, %p_dot, %p) : (f32, f32, f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x32xf32>) -> tensor<?x?x?x32xf32>
  %o_dot = "attn.output"(%o) {index = 1 : i64} : (tensor<?x?x?x32xf32>) -> tensor<?x?x?x32xf32>
  return %o, %o_dot : tensor<?x?x?x32xf32>, tensor<?x?x?x32xf32>
}
