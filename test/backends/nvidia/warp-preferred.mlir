// Who makes a kernel where nobody asks for an emitter: the `warp` dialect where its kernels were measured to be no slower.
// RUN: attn-opt %s -p nvidia-kernel | FileCheck %s
// RUN: attn-translate %s --to cuda | FileCheck %s --check-prefix=CUDA

!t = tensor<?x?x?x128xf16>
!narrow = tensor<?x?x?x64xf16>

// CHECK-LABEL: func.func @softmax(
// CHECK-SAME:    emitter = "warp"
// CHECK-SAME:    longer = 49152
// CUDA-LABEL:  __launch_bounds__(384, 1) softmax(
func.func @softmax(%q: !t, %k: !t, %v: !t) -> !t {
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

// Terms of positions were slower.
// CHECK-LABEL: func.func @distance(
// CHECK-SAME:    emitter = "hopper"
func.func @distance(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %j = arith.index_cast %kv_idx : index to i32
      %x = arith.sitofp %j : i32 to f32
      %y = arith.addf %s, %x : f32
      "attn.yield"(%y) : (f32) -> ()
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

// The thread that draws tiles tells the others where they are.
// CHECK-LABEL: func.func @narrow(
// CHECK-SAME:    emitter = "warp"
// CHECK-SAME:    tell = 1
func.func @narrow(%q: !narrow, %k: !narrow, %v: !narrow) -> !narrow {
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
  }) {outputs = []} : (!narrow, !narrow, !narrow) -> !narrow
  return %o : !narrow
}

// A sigmoid without a mask is 1.01 to 1.08 times as fast.
// CHECK-LABEL: func.func @sigmoid(
// CHECK-SAME:    emitter = "warp"
func.func @sigmoid(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
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

// A mask that reads a number spills.
// CHECK-LABEL: func.func @present(
// CHECK-SAME:    emitter = "hopper"
func.func @present(%q: !t, %k: !t, %v: !t, %n: index) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %there = arith.cmpi slt, %kv_idx, %n : index
      "attn.yield"(%there) : (i1) -> ()
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

// Passes read no `pin`: who asks for it gets it.
// CHECK-LABEL: func.func @pinned(
// CHECK-SAME:    emitter = "hopper"{{.*}}pin = 1
func.func @pinned(%q: !t, %k: !t, %v: !t) -> !t attributes {tile.choices = {pin = 1 : i64}} {
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
