// Packed sequences: tiles are the items of a list of work, whose last row has their number; what is stored ends where a view does.
// RUN: attn-opt %s -p 'warp-assign-layouts,canonicalize,cse' | FileCheck %s
// Copy engines take views by descriptors of another kind: the kernel keeps which arguments these are.
// RUN: sed 's/sm_80/sm_90a/' %s > %t.mlir
// RUN: attn-opt %t.mlir -p 'warp-assign-layouts,canonicalize,cse' | FileCheck %s --check-prefix=TMA

!x = memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
!n = memref<?xi32, strided<[?]>>
!work = memref<?x4xi32, strided<[?, ?]>>

// CHECK-LABEL: "warp.kernel"() ({
// CHECK-NEXT: ^bb0(%[[X:.*]]: memref<?x?x?x64xf16, {{.*}}>, %{{.*}}: {{.*}}, %{{.*}}: {{.*}}, %[[O:.*]]: {{.*}}, %[[WORK:.*]]: memref<?x4xi32, {{.*}}>):
// CHECK-DAG: %[[HEADS:.*]] = memref.dim %[[X]], %c1
// CHECK-DAG: %[[ROWS:.*]] = memref.dim %[[WORK]], %c0
// CHECK: %[[LAST:.*]] = arith.subi %[[ROWS]], %c1
// CHECK: %[[COUNT:.*]] = memref.load %[[WORK]][%[[LAST]], %c0]
// CHECK: %[[ITEMS:.*]] = arith.index_cast %[[COUNT]]
// CHECK: %[[TILES:.*]] = arith.muli %[[HEADS]], %[[ITEMS]]
// CHECK: scf.for %[[TILE:.*]] = %{{.*}} to %[[TILES]]
// CHECK-DAG: %[[ITEM:.*]] = arith.remsi %[[TILE]], %[[ITEMS]]
// CHECK: memref.load %[[WORK]][%[[ITEM]], %c1]
// CHECK: "warp.store"(%{{.*}}, %[[O]], %[[ENTRY:.*]], %{{.*}}, %{{.*}})
// The list has the longest items first.
// CHECK: warp.schedule = {arch = "sm_80", reverse = 0 : i64}
// TMA: "warp.copy_async"(%{{.*}}, %[[ENTRY:.*]], %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}})
// TMA: "warp.store"(%{{.*}}, %{{.*}}, %[[ENTRY]], %{{.*}}, %{{.*}})
// TMA: tile.kernel = {{{.*}}lengths = array<i64: 2>, ragged = array<i64: 0, 3>}
// TMA-SAME: warp.schedule = {arch = "sm_90a", reverse = 0 : i64}
func.func @packed(%x: !x, %begins: !n, %lengths: !n, %o: !x, %work: !work)
    attributes {tile.kernel = {block_q = 128 : i64, block_kv = 64 : i64, begins = array<i64: 1>, lengths = array<i64: 2>, ragged = array<i64: 0, 3>},
                tile.schedule = {arch = "sm_80"}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %p = "tile.program_id"() {axis = 0 : i64} : () -> index
  %h = "tile.program_id"() {axis = 1 : i64} : () -> index
  %i0 = memref.load %work[%p, %c0] : !work
  %s = arith.index_cast %i0 : i32 to index
  %i1 = memref.load %work[%p, %c1] : !work
  %first = arith.index_cast %i1 : i32 to index
  %i2 = memref.load %work[%p, %c2] : !work
  %end = arith.index_cast %i2 : i32 to index
  %b0 = memref.load %begins[%s] : !n
  %begin = arith.index_cast %b0 : i32 to index
  %l0 = memref.load %lengths[%s] : !n
  %length = arith.index_cast %l0 : i32 to index
  %rows = memref.dim %x, %c2 : !x
  %entry = arith.addi %begin, %length : index
  %shift = arith.subi %rows, %length : index
  %row = arith.addi %shift, %first : index
  %count = arith.subi %end, %first : index
  %t = "tile.load"(%x, %entry, %h, %row, %count) : (!x, index, index, index, index) -> tensor<128x64xf16>
  %c128 = arith.constant 128 : index
  %c64 = arith.constant 64 : index
  %y = "tile.map"(%c128, %c64) ({
  ^bb0(%i: index, %j: index):
    %v = tensor.extract %t[%i, %j] : tensor<128x64xf16>
    "tile.yield"(%v) {operandSegmentSizes = array<i32: 1, 0>} : (f16) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<128x64xf16>
  "tile.store"(%y, %o, %entry, %h, %row, %count) : (tensor<128x64xf16>, !x, index, index, index, index) -> ()
  return
}
