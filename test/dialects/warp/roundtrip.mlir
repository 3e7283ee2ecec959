// Every op of the dialect parses, prints, and parses again to the same text.
// RUN: attn-opt %s | attn-opt | FileCheck %s
// RUN: attn-opt %inputs/warp/causal-forward.mlir > %t.forward
// RUN: attn-opt %t.forward > %t.again
// RUN: diff %t.forward %t.again

#smem = #warp.shared<128 : i64>
!acc = tensor<64x72xf32, #warp.layout<"wgmma", "tile">>
!p = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
!rows = tensor<64xf32, #warp.layout<"wgmma", "rows">>
!tile = memref<64x64xf16, #smem>
!dq = memref<?x?x?x64xf32>

// CHECK-LABEL: "warp.kernel"() ({
// CHECK-NEXT:  ^bb0(%[[Q:.*]]: memref<?x?x?x64xf16>, %[[DQ:.*]]: memref<?x?x?x64xf32>, %[[LSE:.*]]: memref<?x?x?xf32>, %[[SEMAPHORE:.*]]: memref<?xi32>, %{{.*}}: memref<?x?xi32>):
"warp.kernel"() ({
^bb0(%q: memref<?x?x?x64xf16>, %dq: !dq, %lse: memref<?x?x?xf32>, %semaphore: memref<?xi32>, %table: memref<?x?xi32>):
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %ring = "warp.alloc"() : () -> memref<1x64x64xf16, #smem>
  %ones = "warp.alloc"() : () -> memref<1x64x64xf16, #smem>
  %sums = "warp.alloc"() : () -> memref<1x64x64xf32, #smem>
  %bytes = "warp.alloc"() : () -> memref<2x64x64xf8E5M2, #warp.shared<64 : i64>>
  %numbers = "warp.alloc"() : () -> memref<2x64xf32, #warp.shared<0 : i64>>
  %windows = "warp.alloc"() : () -> memref<2x64x64xf32, #warp.shared<128 : i64>>
  %window = "warp.view"(%windows, %c0, %c0, %c0) : (memref<2x64x64xf32, #warp.shared<128 : i64>>, index, index, index) -> memref<64x64xf32, #warp.shared<128 : i64>>
  %landed = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 33 : i64>
  // CHECK: "warp.role"() ({
  // CHECK-NEXT: ^bb0(%[[GROUP:.*]]: index):
  "warp.role"() ({
  ^bb0(%warpgroup: index):
    // CHECK: "warp.elect"() ({
    "warp.elect"() ({
      // CHECK: "warp.next_tile"(%[[SEMAPHORE]], {{.*}}) : (memref<?xi32>, index) -> index
      %next = "warp.next_tile"(%semaphore, %c0) : (memref<?xi32>, index) -> index
    }) : () -> ()
    // CHECK: %{{.*}}:2 = "warp.stage"(%{{.*}}) {stages = 2 : i64} : (index) -> (index, index)
    %stage, %phase = "warp.stage"(%c0) {stages = 2} : (index) -> (index, index)
    %b = "warp.view"(%ring, %c0, %c0, %c0) : (memref<1x64x64xf16, #smem>, index, index, index) -> !tile
    %one = "warp.view"(%ones, %c0, %c0, %c0) : (memref<1x64x64xf16, #smem>, index, index, index) -> memref<64x8xf16, #smem>
    // CHECK: %[[WIDE:.*]] = "warp.concat"({{.*}}) : ({{.*}}) -> memref<64x72xf16, #warp.shared<128 : i64>>
    %wide = "warp.concat"(%b, %one) : (!tile, memref<64x8xf16, #smem>) -> memref<64x72xf16, #smem>
    %turned = "warp.view"(%bytes, %c0, %c0, %c0) : (memref<2x64x64xf8E5M2, #warp.shared<64 : i64>>, index, index, index) -> memref<64x64xf8E5M2, #warp.shared<64 : i64>>
    // CHECK: "warp.transpose"({{.*}}) : (memref<64x64xf8E5M2, {{.*}}>, memref<64x64xf8E5M2, {{.*}}>) -> ()
    "warp.transpose"(%turned, %turned) : (memref<64x64xf8E5M2, #warp.shared<64 : i64>>, memref<64x64xf8E5M2, #warp.shared<64 : i64>>) -> ()
    // CHECK: "warp.copy_lanes_async"(%[[Q]], {{.*}}) : (memref<?x?x?x64xf16>, index, index, index, index, memref<64x64xf16, #warp.shared<128 : i64>>) -> ()
    "warp.copy_lanes_async"(%q, %c0, %c0, %c0, %c0, %b) : (memref<?x?x?x64xf16>, index, index, index, index, !tile) -> ()
    // CHECK-NEXT: "warp.copy_commit"() : () -> ()
    "warp.copy_commit"() : () -> ()
    // CHECK-NEXT: "warp.copy_wait"() {pending = 0 : i64} : () -> ()
    "warp.copy_wait"() {pending = 0} : () -> ()
    // CHECK: "warp.load_async"(%[[Q]], {{.*}}) : ({{.*}}) -> !warp.pending<tensor<64x64xf16, #warp.layout<"wgmma", "tile">>>
    %pending = "warp.load_async"(%q, %c0, %c0, %c0, %c0) : (memref<?x?x?x64xf16>, index, index, index, index) -> !warp.pending<!p>
    // CHECK: "warp.load_wait"(%{{.*}}) {pending = 0 : i64}
    %a = "warp.load_wait"(%pending) {pending = 0} : (!warp.pending<!p>) -> !p
    // CHECK: "warp.read"
    %again = "warp.read"(%b) : (!tile) -> !p
    // CHECK: "warp.read_transposed"
    %other_way = "warp.read_transposed"(%b) : (!tile) -> !p
    %start = "warp.registers"() : () -> !acc
    // CHECK: "warp.each_warp"() ({
    %acc = "warp.each_warp"() ({
      // CHECK: "warp.mma"(%{{.*}}, %{{.*}}, %[[WIDE]]) {transpose_a = false, transpose_b = false}
      %s = "warp.mma"(%start, %a, %wide) {transpose_a = false, transpose_b = false} : (!acc, !p, memref<64x72xf16, #smem>) -> !acc
      "warp.yield"(%s) {operandSegmentSizes = array<i32: 1, 0, 0>} : (!acc) -> ()
    }) {resultSegmentSizes = array<i32: 1, 0, 0>} : () -> !acc
    // CHECK: "warp.load"(%[[LSE]], {{.*}}) : ({{.*}}) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
    %rows = "warp.load"(%lse, %c0, %c0, %c0) : (memref<?x?x?xf32>, index, index, index) -> !rows
    // CHECK: "warp.order_wait"(%[[SEMAPHORE]]
    "warp.order_wait"(%semaphore, %c0, %c0) : (memref<?xi32>, index, index) -> ()
    // CHECK: %[[NOW:.*]] = "warp.order_now"(%[[SEMAPHORE]], %{{.*}}) : (memref<?xi32>, index) -> index
    %now = "warp.order_now"(%semaphore, %c0) : (memref<?xi32>, index) -> index
    "warp.elect"() ({
      // CHECK: "warp.claim"(%[[SEMAPHORE]], %{{.*}}, %[[NOW]]) : (memref<?xi32>, index, index) -> i1
      %first = "warp.claim"(%semaphore, %c0, %now) : (memref<?xi32>, index, index) -> i1
    }) : () -> ()
    %keys = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
    %columns = ub.poison : tensor<64x16xf16, #warp.layout<"wgmma", "tile">>
    // CHECK: "warp.hold"(%{{.*}}) : (memref<64x64xf16, #warp.shared<128 : i64>>, tensor<64x16xf16, #warp.layout<"wgmma", "tile">>)
    %held = "warp.hold"(%keys, %columns)
        : (memref<64x64xf16, #warp.shared<128 : i64>>, tensor<64x16xf16, #warp.layout<"wgmma", "tile">>) -> memref<64x64xf16, #warp.shared<128 : i64>>
    // CHECK: "warp.atomic_add"(%{{.*}}, %[[LSE]]
    "warp.atomic_add"(%rows, %lse, %c0, %c0, %c0, %c0) {ordered = true} : (!rows, memref<?x?x?xf32>, index, index, index, index) -> ()
    // CHECK: "warp.copy_rows_async"(%[[LSE]], {{.*}}) : ({{.*}}) -> ()
    "warp.copy_rows_async"(%lse, %c0, %c0, %c0, %numbers, %landed, %c0)
        : (memref<?x?x?xf32>, index, index, index, memref<2x64xf32, #warp.shared<0 : i64>>, !warp.barrier<2 : i64, 33 : i64>, index) -> ()
    // CHECK: "warp.copy_window_async"(%{{.*}}) {rows = 1 : i64}
    "warp.copy_window_async"(%lse, %c0, %c0, %c0, %window, %landed, %c0) {rows = 1}
        : (memref<?x?x?xf32>, index, index, index, memref<64x64xf32, #warp.shared<128 : i64>>, !warp.barrier<2 : i64, 33 : i64>, index) -> ()
    // CHECK: %[[FOUND:.*]]:2 = "warp.find_pages"(%{{.*}}) : (memref<?x?xi32>, index, index, index, index) -> (vector<4xindex>, vector<4xindex>)
    %pages, %places = "warp.find_pages"(%table, %c0, %c0, %c0, %c0) : (memref<?x?xi32>, index, index, index, index) -> (vector<4xindex>, vector<4xindex>)
    // CHECK: "warp.copy_pages_async"(%[[Q]], %[[FOUND]]#0, %[[FOUND]]#1, {{.*}}) : ({{.*}}) -> ()
    "warp.copy_pages_async"(%q, %pages, %places, %c0, %c0, %c0, %b, %landed, %c0)
        : (memref<?x?x?x64xf16>, vector<4xindex>, vector<4xindex>, index, index, index, !tile, !warp.barrier<2 : i64, 33 : i64>, index) -> ()
    // CHECK: "warp.copy_rows_scaled"(%[[LSE]], {{.*}}) {factor = 5.000000e-01 : f32, most = 0x7F800000 : f32}
    "warp.copy_rows_scaled"(%lse, %c0, %c0, %c0, %zero, %numbers, %landed, %c0) {factor = 0.5 : f32, most = 0x7F800000 : f32}
        : (memref<?x?x?xf32>, index, index, index, f32, memref<2x64xf32, #warp.shared<0 : i64>>, !warp.barrier<2 : i64, 33 : i64>, index) -> ()
    // CHECK: "warp.make_rows"(%{{.*}}) ({
    "warp.make_rows"(%numbers, %landed, %c0) ({
    ^bb0(%place: index):
      %number = memref.load %lse[%c0, %c0, %place] : memref<?x?x?xf32>
      "warp.yield"(%number) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {summed = true} : (memref<2x64xf32, #warp.shared<0 : i64>>, !warp.barrier<2 : i64, 33 : i64>, index) -> ()
    // CHECK: "warp.copy_rows_lanes_async"(%[[LSE]], {{.*}}) {count = 32 : i64}
    "warp.copy_rows_lanes_async"(%lse, %c0, %c0, %c0, %numbers, %c0, %c0) {count = 32}
        : (memref<?x?x?xf32>, index, index, index, memref<2x64xf32, #warp.shared<0 : i64>>, index, index) -> ()
    %part = "warp.view"(%sums, %c0, %c0, %c0) : (memref<1x64x64xf32, #smem>, index, index, index) -> memref<64x64xf32, #smem>
    "warp.elect"() ({
      // CHECK: "warp.add_async"(%{{.*}}, %[[DQ]]
      "warp.add_async"(%part, %dq, %c0, %c0, %c0, %c0) {ordered = false} : (memref<64x64xf32, #smem>, !dq, index, index, index, index) -> ()
      // CHECK: "warp.order_pass"(%[[SEMAPHORE]]
      "warp.order_pass"(%semaphore, %c0, %c0) : (memref<?xi32>, index, index) -> ()
    }) : () -> ()
  // CHECK: {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64}
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 168} : () -> ()
}) {sym_name = "ops", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()
