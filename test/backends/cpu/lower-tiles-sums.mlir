// RUN: attn-opt %s -p 'tile-schedule{target=cpu},cpu-lower-tiles,canonicalize,cse' --split-input-file | FileCheck %s

// tile.accumulate: several rows of the target are carried in vectors along the head dimension; each weight is broadcast, each
// vector of a source row is loaded once for all of them. Programs of pairs come in order of their chunks.

!t = memref<?x?x?x8xf32, strided<[?, ?, ?, ?]>>
!sum = memref<?x?x?x?x8xf32, strided<[?, ?, ?, ?, ?]>>

// CHECK-LABEL: func.func @accumulate(
// CHECK:         scf.for %{{.*}} iter_args(%[[A:[a-z0-9_]+]] = %{{[a-z0-9_]+}}, %[[B:[a-z0-9_]+]] = %{{[a-z0-9_]+}},{{.*}}) -> (vector<8xf32>, vector<8xf32>
// CHECK:           %[[ROW:.*]] = llvm.load %{{.*}} {alignment = 4 : i64} : !llvm.ptr -> vector<8xf32>
// CHECK:           %[[W0:.*]] = llvm.load %{{.*}} : !llvm.ptr -> f32
// CHECK:           %[[WIDE0:.*]] = vector.broadcast %[[W0]] : f32 to vector<8xf32>
// CHECK-NEXT:      %[[NEXT0:.*]] = vector.fma %[[WIDE0]], %[[ROW]], %[[A]]
// CHECK:           %[[W1:.*]] = llvm.load %{{.*}} : !llvm.ptr -> f32
// CHECK:           vector.fma %{{.*}}, %[[ROW]], %[[B]]
// CHECK:         llvm.store %{{.*}} : vector<8xf32>, !llvm.ptr
func.func @accumulate(%k: !t, %out: !sum, %chunk: index) attributes {tile.kernel = {block_q = 16, block_kv = 32, grid = "pairs", score = f32}} {
  %b = "tile.program_id"() {axis = 2} : () -> index
  %c16 = arith.constant 16 : index
  %rows = "tile.load"(%k, %b, %b, %b, %chunk) : (!t, index, index, index, index) -> tensor<?x8xf32>
  %w = "tile.map"(%c16, %chunk) ({
  ^bb0(%i: index, %j: index):
    %x = arith.constant 1.0 : f32
    "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<16x?xf32>
  "tile.accumulate"(%w, %rows, %out, %b, %b, %b, %b, %chunk) : (tensor<16x?xf32>, tensor<?x8xf32>, !sum, index, index, index, index, index) -> ()
  return
}

// -----

// tile.scatter_add: where the lanes have one index, their sum is added; where they have several, one lane after the other, and
// lanes that add nothing write to a place of no account.

!m = memref<?x?xf32, strided<[?, ?]>>

// CHECK-LABEL: func.func @scatter(
// CHECK:         %[[NOWHERE:.*]] = llvm.alloca %{{.*}} x f32 {alignment = 64 : i64}
// CHECK:         scf.while
// CHECK:           %[[VALID:.*]] = arith.cmpi slt, %{{.*}} : vector<16xindex>
// CHECK:           arith.select %[[VALID]], %{{.*}} : vector<16xi1>, vector<16xf32>
// CHECK:           vector.extract_strided_slice %{{.*}} {offsets = [8], sizes = [8], strides = [1]}
// CHECK:           %[[TOTAL:.*]] = vector.extract %{{.*}}[0] : f32 from vector<1xf32>
// CHECK:           %[[NEW:.*]] = arith.addf %{{.*}}, %[[TOTAL]] : f32
// CHECK-NEXT:      llvm.store %[[NEW]]
// CHECK:           scf.for
// CHECK:             arith.select %{{.*}} : vector<16xi1>, vector<16xi64>
// CHECK:             scf.for
// CHECK:               %[[WHERE:.*]] = llvm.inttoptr
// CHECK:               %[[OLD:.*]] = llvm.load %[[WHERE]]
// CHECK-NEXT:          %[[SUM:.*]] = arith.addf %[[OLD]], %{{.*}} : f32
// CHECK-NEXT:          llvm.store %[[SUM]], %[[WHERE]]
func.func @scatter(%out: !m, %chunk: index) attributes {tile.kernel = {block_q = 16, block_kv = 32, grid = "pairs", score = f32}} {
  %b = "tile.program_id"() {axis = 2} : () -> index
  %x = arith.constant 1.0 : f32
  %true = arith.constant true
  "tile.scatter_add"(%out, %chunk) ({
  ^bb0(%i: index):
    "tile.scatter_yield"(%x, %true, %b, %b) : (f32, i1, index, index) -> ()
  }) : (!m, index) -> ()
  "tile.scatter_add"(%out, %chunk, %chunk) ({
  ^bb0(%i: index, %j: index):
    %keep = arith.cmpi sge, %i, %j : index
    "tile.scatter_yield"(%x, %keep, %i, %j) : (f32, i1, index, index) -> ()
  }) : (!m, index, index) -> ()
  return
}
