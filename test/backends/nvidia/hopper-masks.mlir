// How masks are printed in kernels for Hopper: comparisons of positions as one bound of the columns a row, keys past the end as -inf.
// RUN: attn-translate %s --to cuda | FileCheck %s
// RUN: attn-run %s -p nvidia-kernel

!t = tensor<?x?x?x64xf16>

// Two bounds a row; the upper one counts the keys that exist, too, so that neither maxima nor sums ask for that.
// CHECK-LABEL: __global__ void __launch_bounds__({{.*}}) window(
// CHECK:         for (;; ++iteration) {
// CHECK-NOT:     inside
// CHECK:         [[UPPER:bound[_0-9]*]][h] = min([[ROW:n_[0-9]*]] - kv, count - 1) - column;
// CHECK-NEXT:    [[LOWER:bound[_0-9]*]][h] = [[ROW]] - kv - 100 - column;
// CHECK:         = (8 * c + e <= [[UPPER]][h]) & (8 * c + e >= [[LOWER]][h]);
// CHECK:         attn::largest_in_rows(
// CHECK-NOT:     inside
// CHECK:         attn::tma_store(
func.func @window(%q: !t, %k: !t, %v: !t) -> !t attributes {tile.choices = {emitter = "hopper"}} {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %w = arith.constant 100 : index
      %c = arith.cmpi sge, %q_idx, %kv_idx : index
      %back = arith.subi %q_idx, %kv_idx : index
      %near = arith.cmpi sle, %back, %w : index
      %present = arith.andi %c, %near : i1
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

// The first operand may have the keys, and constants on both sides come together.
// CHECK-LABEL: __global__ void __launch_bounds__({{.*}}) shifted(
// CHECK:         for (;; ++iteration) {
// CHECK:         [[UPPER:bound[_0-9]*]][h] = min({{n_[0-9]*}} - kv - 3, count) - column;
// CHECK:         = (8 * c + e < [[UPPER]][h]) ?
// CHECK-NOT:     inside
// CHECK:         attn::tma_store(
func.func @shifted(%q: !t, %k: !t, %v: !t) -> !t attributes {tile.choices = {emitter = "hopper"}} {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %three = arith.constant 3 : index
      %seven = arith.constant 7 : index
      %key = arith.addi %kv_idx, %three : index
      %query = arith.addi %q_idx, %seven : index
      %present = arith.cmpi slt, %key, %query : index
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

// A mask that keeps late keys says nothing about the end.
// CHECK-LABEL: __global__ void __launch_bounds__({{.*}}) far(
// CHECK:         for (;; ++iteration) {
// CHECK:         [[LOWER:bound[_0-9]*]][h] = {{n_[0-9]*}} - kv - column;
// CHECK:         const bool inside = column + 8 * c + e < count;
// CHECK:         = (8 * c + e > [[LOWER]][h]) ?
// CHECK:         inside ?
// CHECK:         attn::tma_store(
func.func @far(%q: !t, %k: !t, %v: !t) -> !t attributes {tile.choices = {emitter = "hopper"}} {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %present = arith.cmpi sgt, %kv_idx, %q_idx : index
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

// Without a mask the end is written into the scores.
// CHECK-LABEL: __global__ void __launch_bounds__({{.*}}) all(
// CHECK:         = c / 4 * 8 + c % 2 < count - column ? {{.*}} : -INFINITY;
// CHECK:         attn::largest_in_rows(
// CHECK-NOT:     inside
// CHECK:         attn::tma_store(
func.func @all(%q: !t, %k: !t, %v: !t) -> !t attributes {tile.choices = {emitter = "hopper"}} {
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
