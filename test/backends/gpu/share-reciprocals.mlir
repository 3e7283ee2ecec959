// Divisors 1 + exp2(t) of weights become numbers between 2^-31 and 1, of which the product of four is no number too small.
// RUN: attn-opt %s -p 'gpu-share-reciprocals,canonicalize' | FileCheck %s

// CHECK-LABEL: func.func @half(
// CHECK-DAG:     %[[SMALL:.*]] = arith.constant 4.65661287E-10 : f32
// CHECK-DAG:     %[[LESS:.*]] = arith.constant -3.100000e+01 : f32
// CHECK-DAG:     %[[ONE:.*]] = arith.constant 1.000000e+00 : f32
// CHECK:           %[[T:.*]] = math.fma %{{.*}}, %{{.*}}, %[[LESS]] : f32
// CHECK-NEXT:      %[[E:.*]] = math.exp2 %[[T]]
// CHECK-NEXT:      %[[SUM:.*]] = arith.addf %[[E]], %[[SMALL]] : f32
// CHECK-NEXT:      %[[DIVISOR:.*]] = arith.minimumf %[[SUM]], %[[ONE]] : f32
// CHECK-NEXT:      arith.divf %[[SMALL]], %[[DIVISOR]] {gpu.shared = 4 : i64} : f32
!t = tensor<128x64xf32>
!half = tensor<128x64xf16>
func.func @half(%s: !t, %rows: index, %columns: index) -> (!half) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 64 : i64}} {
  %c = arith.constant -0.25 : f32
  %one = arith.constant 1.0 : f32
  %y = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %t = arith.mulf %x, %c : f32
    %e = math.exp2 %t : f32
    %sum = arith.addf %e, %one : f32
    %w = arith.divf %one, %sum : f32
    %h = arith.truncf %w : f32 to f16
    "tile.yield"(%h) {operandSegmentSizes = array<i32: 1, 0>} : (f16) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !half
  return %y : !half
}

// Weights that are kept in f32 may be as small as 2^-63; then products of two divisors are scaled before they are multiplied.
// CHECK-LABEL: func.func @single(
// CHECK-DAG:     %[[SMALL:.*]] = arith.constant 1.08420217E-19 : f32
// CHECK:           arith.divf %[[SMALL]], %{{.*}} {gpu.shared = 4 : i64, gpu.shared_wide} : f32
func.func @single(%s: !t, %rows: index, %columns: index) -> (!t) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 64 : i64}} {
  %one = arith.constant 1.0 : f32
  %y = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %e = math.exp2 %x : f32
    %sum = arith.addf %e, %one : f32
    %w = arith.divf %one, %sum : f32
    "tile.yield"(%w) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !t
  return %y : !t
}

// 8 times the reciprocal of four such divisors is more than f32 has: two.
// CHECK-LABEL: func.func @large(
// CHECK:           arith.divf %{{.*}}, %{{.*}} {gpu.shared = 2 : i64} : f32
func.func @large(%s: !t, %rows: index, %columns: index) -> (!t) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 64 : i64}} {
  %one = arith.constant 1.0 : f32
  %eight = arith.constant 8.0 : f32
  %y = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %e = math.exp2 %x : f32
    %sum = arith.addf %e, %one : f32
    %w = arith.divf %eight, %sum : f32
    "tile.yield"(%w) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !t
  return %y : !t
}

// u (1 - 2 w) is 2^-30 u wrong at most: four.
// CHECK-LABEL: func.func @softcap(
// CHECK:           arith.divf %{{.*}}, %{{.*}} {gpu.shared = 4 : i64} : f32
func.func @softcap(%s: !t, %u: f32, %rows: index, %columns: index) -> (!t) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 64 : i64}} {
  %one = arith.constant 1.0 : f32
  %minus_two = arith.constant -2.0 : f32
  %y = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %e = math.exp2 %x : f32
    %sum = arith.addf %e, %one : f32
    %w = arith.divf %one, %sum : f32
    %v = arith.mulf %u, %minus_two : f32
    %capped = math.fma %v, %w, %u : f32
    "tile.yield"(%capped) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !t
  return %y : !t
}

// Over pairs, reciprocals are hidden behind products.
// CHECK-LABEL: func.func @pairs(
// CHECK-NOT:       gpu.shared
func.func @pairs(%s: !t, %rows: index, %columns: index) -> (!t) attributes {tile.kernel = {block_q = 128 : i64, grid = "pairs"}} {
  %one = arith.constant 1.0 : f32
  %y = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %e = math.exp2 %x : f32
    %sum = arith.addf %e, %one : f32
    %w = arith.divf %one, %sum : f32
    "tile.yield"(%w) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !t
  return %y : !t
}
