// Pairs on sm_80: weights go through shared memory to the warps that have the queries' rows of the sum over keys, and all meet between.
// RUN: attn-opt %s --split-input-file -p 'warp-assign-layouts{arch=sm_80},canonicalize,cse' | FileCheck %s

!x = memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
!sums = memref<?x?x?x?x64xf32>

// CHECK-LABEL: "warp.kernel"() ({
// CHECK: %[[WEIGHTS:.*]] = "warp.alloc"() : () -> memref<1x128x128xf16, #warp.shared<128 : i64>>
// CHECK-NOT: warp.mbarrier
// CHECK: "warp.role"() ({
// CHECK-NEXT: ^bb0(%[[GROUP:.*]]: index):
// CHECK: %[[ROW:.*]] = arith.muli %[[GROUP]], %c64 : index
func.func @sums(%q: !x, %k: !x, %dq: !sums, %dk: !x, %chunk: index)
    attributes {tile.kernel = {block_q = 128 : i64, block_kv = 128 : i64, grid = "pairs", over = 1 : i64}, tile.schedule = {arch = "sm_80"}} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c128 = arith.constant 128 : index
  %part = "tile.program_id"() {axis = 0 : i64} : () -> index
  %h = "tile.program_id"() {axis = 1 : i64} : () -> index
  %b = "tile.program_id"() {axis = 2 : i64} : () -> index
  %queries = memref.dim %q, %c2 : !x
  %keys = memref.dim %k, %c2 : !x
  %first = arith.muli %part, %chunk : index
  %last = arith.addi %first, %chunk : index
  %end = arith.minsi %last, %keys : index
  scf.for %key = %first to %end step %c128 {
    %left = arith.subi %end, %key : index
    %count = arith.minsi %left, %c128 : index
    %ks = "tile.load"(%k, %b, %h, %key, %count) : (!x, index, index, index, index) -> tensor<128x64xf16>
    %again = "tile.load"(%k, %b, %h, %key, %count) : (!x, index, index, index, index) -> tensor<?x64xf16>
    %start = "tile.fill"(%zero) {accumulator = 0 : i64} : (f32) -> tensor<128x64xf32>
    %sum = scf.for %query = %c0 to %queries step %c128 iter_args(%sofar = %start) -> (tensor<128x64xf32>) {
      %rest = arith.subi %queries, %query : index
      %few = arith.minsi %rest, %c128 : index
      // CHECK: "warp.named_sync"(%c1) {threads = 256 : i64}
      // CHECK: %[[S:.*]] = "warp.mma"({{.*}}) {transpose_a = false, transpose_b = true} : {{.*}} -> tensor<64x128xf32, #warp.layout<"mma16", "tile">>
      %qs = "tile.load"(%q, %b, %h, %query, %few) : (!x, index, index, index, index) -> tensor<?x64xf16>
      %s = "tile.dot"(%ks, %qs) {transpose_b = true} : (tensor<128x64xf16>, tensor<?x64xf16>) -> tensor<128x?xf32>
      %w = "tile.map"(%c128, %few) ({
      ^bb0(%i: index, %j: index):
        %x = tensor.extract %s[%i, %j] : tensor<128x?xf32>
        %y = arith.truncf %x : f32 to f16
        "tile.yield"(%y) {operandSegmentSizes = array<i32: 1, 0>} : (f16) -> ()
      }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<128x?xf16>
      // Zeros of keys that do not exist, then the sum over queries, by what each warp holds.
      // CHECK: %[[HELD:.*]] = scf.if
      // CHECK: "warp.mma"(%{{.*}}, %[[HELD]], %{{.*}}) {transpose_a = false, transpose_b = false}
      %more = "tile.dot_add"(%sofar, %w, %qs) {transpose_b = false} : (tensor<128x64xf32>, tensor<128x?xf16>, tensor<?x64xf16>) -> tensor<128x64xf32>
      // Nothing is in the way of the first write: all have met for the loads of this iteration since they read the buffer.
      // CHECK-NOT: warp.named_sync
      // CHECK: %[[OWN:.*]] = "warp.view"(%[[WEIGHTS]], %c0, %[[ROW]], %c0)
      // CHECK-NEXT: "warp.write"(%[[HELD]], %[[OWN]])
      // CHECK-NEXT: "warp.named_sync"(%c1) {threads = 256 : i64}
      // Each warpgroup has 64 of the queries, and all keys.
      // CHECK: %[[ALL:.*]] = "warp.view"(%[[WEIGHTS]], %c0, %c0, %[[ROW]]) {{.*}} -> memref<128x64xf16, #warp.shared<128 : i64>>
      // CHECK: %[[SUM:.*]] = "warp.mma"(%{{.*}}, %[[ALL]], %{{.*}}) {transpose_a = true, transpose_b = false}
      // CHECK: "warp.atomic_add"(%[[SUM]], {{.*}}) {ordered = false}
      "tile.accumulate"(%w, %again, %dq, %part, %b, %h, %query, %few) : (tensor<128x?xf16>, tensor<?x64xf16>, !sums, index, index, index, index, index) -> ()
      scf.yield %more : tensor<128x64xf32>
    }
    "tile.store"(%sum, %dk, %b, %h, %key, %count) : (tensor<128x64xf32>, !x, index, index, index, index) -> ()
  }
  // CHECK: warp.schedule = {arch = "sm_80", join = 0 : i64, reverse = 0 : i64, together = 1 : i64}
  return
}

// -----

// In a fixed order: counters come behind the arguments, each warpgroup keeps in shared memory which keys come next and who sees them, and one
// of its threads waits before they add, and passes the turn on when all have. The last keys come first, by tiles that are drawn.
// CHECK: ^bb0({{.*}}, %[[COUNTERS:.*]]: memref<?xi32>):
// CHECK: %[[KEPT:.*]] = "warp.alloc"() : () -> memref<2x3xi32, #warp.shared<0 : i64>>
// CHECK: %[[SUM:.*]] = "warp.mma"({{.*}}) {transpose_a = true, transpose_b = false}
// CHECK: "warp.elect"
// CHECK: memref.load %[[KEPT]]
// CHECK: "warp.order_wait"(%[[COUNTERS]], %[[COUNTER:.*]], %{{.*}})
// CHECK: "warp.named_sync"(%[[OWN:.*]]) {threads = 128 : i64}
// CHECK-NEXT: "warp.atomic_add"(%[[SUM]], {{.*}}) {ordered = true}
// CHECK-NEXT: "warp.named_sync"(%[[OWN]]) {threads = 128 : i64}
// CHECK: "warp.order_pass"(%[[COUNTERS]],
// CHECK: draw = 1 : i64, {{.*}}reverse = 1 : i64
!x = memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
!sums = memref<?x?x?x?x64xf32>

func.func @ordered(%q: !x, %k: !x, %dq: !sums, %dk: !x, %chunk: index)
    attributes {tile.kernel = {block_q = 128 : i64, block_kv = 128 : i64, grid = "pairs", over = 1 : i64}, tile.schedule = {arch = "sm_80", deterministic = 1, semaphore_over = 0, semaphore_rows = 128, semaphore_parts = 2}} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c128 = arith.constant 128 : index
  %part = "tile.program_id"() {axis = 0 : i64} : () -> index
  %h = "tile.program_id"() {axis = 1 : i64} : () -> index
  %b = "tile.program_id"() {axis = 2 : i64} : () -> index
  %queries = memref.dim %q, %c2 : !x
  %keys = memref.dim %k, %c2 : !x
  %first = arith.muli %part, %chunk : index
  %last = arith.addi %first, %chunk : index
  %end = arith.minsi %last, %keys : index
  scf.for %key = %first to %end step %c128 {
    %left = arith.subi %end, %key : index
    %count = arith.minsi %left, %c128 : index
    %ks = "tile.load"(%k, %b, %h, %key, %count) : (!x, index, index, index, index) -> tensor<128x64xf16>
    %again = "tile.load"(%k, %b, %h, %key, %count) : (!x, index, index, index, index) -> tensor<?x64xf16>
    %start = "tile.fill"(%zero) {accumulator = 0 : i64} : (f32) -> tensor<128x64xf32>
    %sum = scf.for %query = %c0 to %queries step %c128 iter_args(%sofar = %start) -> (tensor<128x64xf32>) {
      %rest = arith.subi %queries, %query : index
      %few = arith.minsi %rest, %c128 : index
      %qs = "tile.load"(%q, %b, %h, %query, %few) : (!x, index, index, index, index) -> tensor<?x64xf16>
      %s = "tile.dot"(%ks, %qs) {transpose_b = true} : (tensor<128x64xf16>, tensor<?x64xf16>) -> tensor<128x?xf32>
      %w = "tile.map"(%c128, %few) ({
      ^bb0(%i: index, %j: index):
        %x = tensor.extract %s[%i, %j] : tensor<128x?xf32>
        %y = arith.truncf %x : f32 to f16
        "tile.yield"(%y) {operandSegmentSizes = array<i32: 1, 0>} : (f16) -> ()
      }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<128x?xf16>
      %more = "tile.dot_add"(%sofar, %w, %qs) {transpose_b = false} : (tensor<128x64xf32>, tensor<128x?xf16>, tensor<?x64xf16>) -> tensor<128x64xf32>
      "tile.accumulate"(%w, %again, %dq, %part, %b, %h, %query, %few) : (tensor<128x?xf16>, tensor<?x64xf16>, !sums, index, index, index, index, index) -> ()
      scf.yield %more : tensor<128x64xf32>
    }
    "tile.store"(%sum, %dk, %b, %h, %key, %count) : (tensor<128x64xf32>, !x, index, index, index, index) -> ()
  }
  return
}

// -----

// CHECK-LABEL: func.func @uncounted
// CHECK-SAME: "a kernel over pairs has one loop over the blocks of keys of a chunk"
func.func @uncounted(%q: memref<?x?x?x64xf16>) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 64 : i64, grid = "pairs"},
                                                           tile.schedule = {deterministic = 1 : i64}} {
  return
}
