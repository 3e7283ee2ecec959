// Backward passes: the `warp` dialect makes those that were measured to be no slower.
// Of many keys: with fewer, those of 64 columns have no zeros of dq, and are the Hopper emitter's.
// RUN: attn-opt %s --split-input-file -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' \
// RUN:   | sed '/_pairs(/s/ {$/ attributes {tile.choices = {length = 3072 : i64}} {/' | attn-opt --split-input-file -p nvidia-kernel - | FileCheck %s

!t = tensor<?x?x?x64xf16>

// Causal softmax of 64 columns: sums over keys are a warpgroup's own.
// CHECK-LABEL: func.func @softmax_bwd_2_pairs(
// CHECK-SAME:    emitter = "warp"
// CHECK-SAME:    key_sums = "warpgroup"
func.func @softmax(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %present = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%present) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

!t = tensor<?x?x?x64xf16>

// So are those of a causal sigmoid.
// CHECK-LABEL: func.func @sigmoid_bwd_0_pairs(
// CHECK-SAME:    tile.kernel = {block_kv = 64 : i64, block_q = 128 : i64
// CHECK-SAME:    emitter = "warp"
func.func @sigmoid(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %present = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%present) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %n = arith.negf %s : f32
      %e = math.exp %n : f32
      %d = arith.addf %one, %e : f32
      %p = arith.divf %one, %d : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

!t = tensor<?x?x?x128xf16>

// Of 128 columns, too: warps add what consumers make, and the first thread block at a block of queries stores its sums.
// CHECK-LABEL: func.func @sigmoid_bwd_0_pairs(
// CHECK-SAME:    tile.kernel = {block_kv = 64 : i64, block_q = 128 : i64
// CHECK-SAME:    claims = 1 : i64{{.*}}emitter = "warp"{{.*}}key_sums = "late"{{.*}}reduction_warps = 1 : i64{{.*}}semaphore_parts = 2 : i64
func.func @sigmoid(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %present = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%present) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %n = arith.negf %s : f32
      %e = math.exp %n : f32
      %d = arith.addf %one, %e : f32
      %p = arith.divf %one, %d : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

!t = tensor<?x?x?x64xf16>

// Without a mask softmax was slower.
// CHECK-LABEL: func.func @full_bwd_2_pairs(
// CHECK-SAME:    emitter = "hopper"
func.func @full(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
