// Keys in pages: each warp of the copying warpgroup arrives for the parts that it copies, up to where the sequence ends; the producer has four
// warps, of which the thread that copies other tiles waits for their stages alone.
// RUN: attn-opt %s -p 'warp-assign-layouts,canonicalize,cse' | FileCheck %s
// RUN: attn-opt %s -p 'warp-assign-layouts,canonicalize,cse,warp-shift-keys,warp-specialize,warp-pipeline-loads' | FileCheck %s --check-prefix=ROLES
// RUN: sed 's/sm_90a/sm_80/' %s > %t.mlir
// RUN: attn-opt %t.mlir -p 'warp-assign-layouts' | FileCheck %s --check-prefix=OTHER

!x = memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
!n = memref<?xi32, strided<[?]>>
!table = memref<?x?xi32, strided<[?, ?]>>
!work = memref<?x4xi32, strided<[?, ?]>>

// CHECK-LABEL: "warp.kernel"() ({
// CHECK-NEXT: ^bb0(%{{.*}}, %[[K:.*]]: memref<?x?x?x64xf16, {{.*}}>, %{{.*}}, %[[LENGTHS:.*]]: memref<?xi32, {{.*}}>, %[[TABLE:.*]]: memref<?x?xi32, {{.*}}>, %{{.*}}, %{{.*}}):
// CHECK-DAG: %[[FULL:.*]] = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 4 : i64>
// CHECK: %[[NARROW:.*]] = memref.load %[[LENGTHS]][%[[SEQUENCE:[0-9]+]]]
// CHECK: %[[END:.*]] = arith.index_cast %[[NARROW]]
// CHECK: scf.for %[[ROW:.*]] = %c0
// CHECK: %[[FOUND:.*]]:2 = "warp.find_pages"(%[[TABLE]], %[[SEQUENCE]], %{{.*}}, %[[ROW]], %[[END]])
// CHECK-NEXT: scf.if
// CHECK: "warp.wait"
// CHECK-NEXT: "warp.copy_pages_async"(%[[K]], %[[FOUND]]#0, %[[FOUND]]#1, %{{.*}}, %[[ROW]], %[[END]], %{{.*}}, %[[FULL]], %{{.*}})

// ROLES: "warp.elect"() ({
// ROLES-NEXT: "warp.wait"
// ROLES-NEXT: "warp.arrive_expect"
// ROLES-NEXT: "warp.copy_async"
// ROLES: %[[STAGE:.*]]:2 = "warp.stage"(%{{.*}}) {stages = 2 : i64}
// ROLES: "warp.find_pages"
// ROLES: "warp.wait"(%{{.*}}, %[[STAGE]]#0, %{{.*}})
// ROLES-NEXT: "warp.copy_pages_async"({{.*}}, %[[STAGE]]#0) : ({{.*}}!warp.barrier<2 : i64, 4 : i64>, index)
// ROLES: }) {registers = 40 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 4 : i64}
// ROLES: "warp-shift-keys" = "rows in pages are copied in parts, which lie in one page"

// OTHER: warp.refused = {"warp-assign-layouts" = "its kernels read no keys in pages (block_table): gather the pages, or use the CPU"}
func.func @paged(%q: !x, %k: !x, %n: !n, %m: !n, %table: !table, %o: !x, %work: !work)
    attributes {tile.kernel = {block_q = 128 : i64, block_kv = 64 : i64, begins = array<i64: 2>, lengths = array<i64: 2, 3>,
                               ragged = array<i64: 0, 5>, paged = array<i64: 1>, table = 4 : i64}, tile.schedule = {arch = "sm_90a"}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  %c128 = arith.constant 128 : index
  %zero = arith.constant 0.0 : f32
  %p = "tile.program_id"() {axis = 0 : i64} : () -> index
  %h = "tile.program_id"() {axis = 1 : i64} : () -> index
  %i0 = memref.load %work[%p, %c0] : !work
  %s = arith.index_cast %i0 : i32 to index
  %i1 = memref.load %work[%p, %c1] : !work
  %first = arith.index_cast %i1 : i32 to index
  %c2 = arith.constant 2 : index
  %i2 = memref.load %work[%p, %c2] : !work
  %end = arith.index_cast %i2 : i32 to index
  %l0 = memref.load %m[%s] : !n
  %length = arith.index_cast %l0 : i32 to index
  %count = arith.subi %end, %first : index
  %rows = memref.dim %q, %c2 : !x
  %l1 = memref.load %n[%s] : !n
  %own = arith.index_cast %l1 : i32 to index
  %shift = arith.subi %rows, %own : index
  %row = arith.addi %shift, %first : index
  %a = "tile.load"(%q, %s, %h, %row, %count) : (!x, index, index, index, index) -> tensor<128x64xf16>
  %start = "tile.fill"(%zero) {accumulator = 0 : i64} : (f32) -> tensor<128x64xf32>
  %sums = scf.for %j = %c0 to %length step %c64 iter_args(%sum = %start) -> (tensor<128x64xf32>) {
    %b = "tile.load"(%k, %s, %h, %j, %c64) : (!x, index, index, index, index) -> tensor<64x64xf16>
    %next = "tile.dot_add"(%sum, %a, %b) {transpose_a = false, transpose_b = true} : (tensor<128x64xf32>, tensor<128x64xf16>, tensor<64x64xf16>) -> tensor<128x64xf32>
    scf.yield %next : tensor<128x64xf32>
  }
  "tile.store"(%sums, %o, %s, %h, %row, %count) : (tensor<128x64xf32>, !x, index, index, index, index) -> ()
  return
}
