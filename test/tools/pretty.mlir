// --pretty prints IR for people: names of the author, infix expressions, constants where they are used, loop nests for maps, each type once.
// RUN: attn-opt %s --pretty | FileCheck %s
// RUN: attn-opt %s --pretty -p cse --print-ir-after-all -o %t 2>&1 | FileCheck %s --check-prefix=AFTER
// RUN: not attn-opt %s --pretty --mlir-print-debuginfo 2>&1 | FileCheck %s --check-prefix=BOTH

// AFTER: IR Dump After cse
// AFTER: func @attention(q: ?x?x?x64xf32
// BOTH:  error: --pretty prints neither the generic form nor locations

// CHECK-LABEL: func @attention(q: ?x?x?x64xf32, k: ?x?x?x64xf32, v: ?x?x?x64xf32, slopes: ?xf32) -> (?x?x?x64xf32, ?x?x?xf32) {
// CHECK-NEXT:    # wrt = ["q"]
// CHECK-NEXT:    o: ?x?x?x64xf32, lse: ?x?x?xf32 = attn.attention(q, k, v, outputs = ["lse"]) {
// CHECK-NEXT:      attn.score(score, b, h, q_idx, kv_idx) { yield score * 0.1 + slopes[h] * f32(i64(kv_idx - q_idx)) }
// CHECK-NEXT:      attn.mask(b, h, q_idx, kv_idx) { yield (q_idx >= kv_idx) & (kv_idx < k.shape[2] - 1) }
// CHECK-NEXT:      attn.row(s, b, h, q_idx) {
// CHECK-NEXT:        m = reduce_max(s)
// CHECK-NEXT:        x = exp(s - m) {fastmath = afn}
// CHECK-NEXT:        sum = reduce_sum(x)
// CHECK-NEXT:        yield x / sum, m + log(sum)
// CHECK-NEXT:      }
// CHECK-NEXT:    }
// CHECK-NEXT:    return o, lse
// CHECK-NEXT:  }
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>, %slopes: tensor<?xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>) attributes {wrt = ["q"]} {
  %c2 = arith.constant 2 : index
  %dim = tensor.dim %k, %c2 : tensor<?x?x?x64xf32>
  %o, %lse = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %0: index, %1: index, %2: index, %3: index):
      %tenth = arith.constant 0.1 : f32
      %scaled = arith.mulf %score, %tenth : f32
      %4 = arith.subi %3, %2 : index
      %5 = arith.index_cast %4 : index to i64
      %6 = arith.sitofp %5 : i64 to f32
      %7 = tensor.extract %slopes[%1] : tensor<?xf32>
      %8 = arith.mulf %7, %6 : f32
      %9 = arith.mulf %score, %tenth : f32
      %10 = arith.addf %9, %8 : f32
      "attn.yield"(%10) : (f32) -> ()
    }) : () -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %one = arith.constant 1 : index
      %0 = arith.cmpi sge, %q_idx, %kv_idx : index
      %1 = arith.subi %dim, %one : index
      %2 = arith.cmpi slt, %kv_idx, %1 : index
      %3 = arith.andi %0, %2 : i1
      "attn.yield"(%3) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %0 = arith.subf %s, %m : f32
      %1 = math.exp %0 fastmath<afn> : f32
      %2 = "attn.reduce"(%1) {kind = "sum"} : (f32) -> f32
      %3 = arith.divf %1, %2 : f32
      %4 = math.log %2 : f32
      %5 = arith.addf %m, %4 : f32
      "attn.yield"(%3, %5) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>)
  return %o, %lse : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
}

// Maps are loop nests: what is yielded is assigned where it is computed, rows are reduced at the end.
// CHECK-LABEL: func @tiles(q: memref<?x?x?x64xf32>, k: memref<?x?x?x64xf32>, o: memref<?x?x?x64xf32>, n: index) {
// CHECK-NEXT:    block = tile.program_id(axis = 0)
// CHECK-NEXT:    q_tile: 16x64xf32 = tile.load q[block, 0, n :+ 16]
// CHECK-NEXT:    acc: 16x64xf32 = tile.fill(0.0, accumulator = 0)
// CHECK-NEXT:    acc_1: 16x64xf32 = scf.for start = 0 to n step 32 with acc_2 = acc {
// CHECK-NEXT:      k_tile: 32x64xf32 = tile.load k[block, 0, start :+ 32]
// CHECK-NEXT:      dot: 16x32xf32 = tile.dot q_tile @ k_tile^T
// CHECK-NEXT:      tile.map i < 16, j < 32 -> tile: 16x32xf32, e: 16x32xf32, row_sum: 16xf32 {
// CHECK-NEXT:        e[i, j] = exp(dot[i, j])
// CHECK-NEXT:        tile[i, j] = -e[i, j]
// CHECK-NEXT:        row_sum[i] += e[i, j]
// CHECK-NEXT:      }
// CHECK-NEXT:      acc_3: 16x64xf32 = tile.dot_rescale acc_2 * row_sum + tile @ k_tile
// CHECK-NEXT:      yield acc_3
// CHECK-NEXT:    }
// CHECK-NEXT:    tile.store o[block, 0, n :+ 16] = acc_1
// CHECK-NEXT:    return
// CHECK-NEXT:  }
func.func @tiles(%q: memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>, %k: memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>, %o: memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>, %n: index) {
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %zero = arith.constant 0.0 : f32
  %0 = "tile.program_id"() {axis = 0 : i64} : () -> index
  %1 = "tile.load"(%q, %0, %c0, %n, %c16) : (memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>, index, index, index, index) -> tensor<16x64xf32>
  %2 = "tile.fill"(%zero) {accumulator = 0 : i64} : (f32) -> tensor<16x64xf32>
  %3 = scf.for %4 = %c0 to %n step %c32 iter_args(%5 = %2) -> (tensor<16x64xf32>) {
    %6 = "tile.load"(%k, %0, %c0, %4, %c32) : (memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>, index, index, index, index) -> tensor<32x64xf32>
    %7 = "tile.dot"(%1, %6) {transpose_b = true} : (tensor<16x64xf32>, tensor<32x64xf32>) -> tensor<16x32xf32>
    %8:3 = "tile.map"(%c16, %c32) ({
    ^bb0(%9: index, %10: index):
      %11 = tensor.extract %7[%9, %10] : tensor<16x32xf32>
      %e = math.exp %11 : f32
      %12 = arith.negf %e : f32
      "tile.yield"(%12, %e, %e) {operandSegmentSizes = array<i32: 2, 1>} : (f32, f32, f32) -> ()
    }) {reductions = ["sum"], resultSegmentSizes = array<i32: 2, 1>} : (index, index) -> (tensor<16x32xf32>, tensor<16x32xf32>, tensor<16xf32>)
    %13 = "tile.dot_rescale"(%5, %8#2, %8#0, %6) {transpose_b = false} : (tensor<16x64xf32>, tensor<16xf32>, tensor<16x32xf32>, tensor<32x64xf32>) -> tensor<16x64xf32>
    scf.yield %13 : tensor<16x64xf32>
  }
  "tile.store"(%3, %o, %0, %c0, %n, %c16) : (tensor<16x64xf32>, memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>, index, index, index, index) -> ()
  return
}

// Optional operands have their names; branches and blocks with labels.
// CHECK-LABEL: func @linear(
// CHECK:         attn.linear_attention(q, k, v, decay = decay, channels = "none", direction = "forward", heads = 2,
// CHECK-NEXT:        outputs = [], state = "kv") {
// CHECK-NEXT:      attn.decay(g, b, h, t, d) { yield -g }
func.func @linear(%0: tensor<?x?x?x16xf32>, %1: tensor<?x?x?x16xf32>, %2: tensor<?x?x?x8xf32>, %3: tensor<?x?x?xf32>) -> tensor<?x?x?x8xf32> {
  %4 = "attn.linear_attention"(%0, %1, %2, %3) ({
    "attn.decay"() ({
    ^bb0(%g: f32, %b: index, %h: index, %t: index, %d: index):
      %n = arith.negf %g : f32
      "attn.yield"(%n) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?x8xf32>
  return %4 : tensor<?x?x?x8xf32>
}

// CHECK-LABEL: private func @control(c: i1, a: i32, b: i32) -> (i32) {
// CHECK-NEXT:    x_1: i32 = scf.if c {
// CHECK-NEXT:      yield a - (b - 1) * 2
// CHECK-NEXT:    } else {
// CHECK-NEXT:      yield b
// CHECK-NEXT:    }
// CHECK-NEXT:    cf.cond_br(c) -> ^block1(x_1), ^block2()
// CHECK-NEXT:  ^block1(x: i32):
// CHECK-NEXT:      return x
// CHECK-NEXT:  ^block2():
// CHECK-NEXT:      call: i32 = func.call @control(c, a if c else b, 7)
// CHECK-NEXT:      return call
func.func private @control(%c: i1, %a: i32, %b: i32) -> i32 {
  %0 = scf.if %c -> (i32) {
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    %1 = arith.subi %b, %one : i32
    %2 = arith.muli %1, %two : i32
    %3 = arith.subi %a, %2 : i32
    scf.yield %3 : i32
  } else {
    scf.yield %b : i32
  }
  cf.cond_br %c, ^bb1(%0 : i32), ^bb2
^bb1(%4: i32):
  return %4 : i32
^bb2:
  %seven = arith.constant 7 : i32
  %5 = arith.select %c, %a, %b : i32
  %6 = func.call @control(%c, %5, %seven) : (i1, i32, i32) -> i32
  return %6 : i32
}
