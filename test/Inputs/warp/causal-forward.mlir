// The causal forward of softmax attention as it runs on Hopper: a producer warp, two warpgroups of consumers in ping-pong, rings of three stages,
// scores of the next block in flight while weights are computed, a persistent loop with the longest tiles first, conditional rescale.
!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!weights = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
!parts = tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
!rows = tensor<64xf32, #warp.layout<"wgmma", "rows">>
!flags = tensor<64xi1, #warp.layout<"wgmma", "rows">>
!ring = memref<3x64x64xf16, #warp.shared<128 : i64>>
!q_buffer = memref<1x128x64xf16, #warp.shared<128 : i64>>
!q_tile = memref<128x64xf16, #warp.shared<128 : i64>>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!messages = memref<3x2xi32, #warp.shared<0 : i64>>
!full = !warp.barrier<3 : i64, 1 : i64>
!free = !warp.barrier<3 : i64, 8 : i64>
!q_full = !warp.barrier<1 : i64, 1 : i64>
!q_free = !warp.barrier<1 : i64, 2 : i64>
!heads = memref<?x?x?x64xf16>
!logs = memref<?x?x?xf32>

func.func @attention(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>) -> (tensor<?x?x?x64xf16>, tensor<?x?x?xf32>) {
  %o, %lse = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %scale = arith.constant 0.125 : f32
      %scaled = arith.mulf %score, %scale : f32
      "attn.yield"(%scaled) : (f32) -> ()
    }) : () -> ()
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
      %log_l = math.log %l : f32
      %lse = arith.addf %m, %log_l : f32
      "attn.yield"(%p, %lse) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"]} : (tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>) -> (tensor<?x?x?x64xf16>, tensor<?x?x?xf32>)
  return %o, %lse : tensor<?x?x?x64xf16>, tensor<?x?x?xf32>
}

"warp.kernel"() ({
^bb0(%q: !heads, %k: !heads, %v: !heads, %o: !heads, %lse: !logs):
  %ln2 = arith.constant 0.693147182 : f32
  %c8 = arith.constant 8 : index
  %one = arith.constant 1.000000e+00 : f32
  %true = arith.constant true
  %scale = arith.constant 0.180336878 : f32
  %minus_inf = arith.constant 0xFF800000 : f32
  %no = arith.constant 0 : i32
  %false = arith.constant false
  %zero = arith.constant 0.000000e+00 : f32
  %lowest = arith.constant -3.40282347E+38 : f32
  %c3 = arith.constant 3 : index
  %c64 = arith.constant 64 : index
  %c128 = arith.constant 128 : index
  %c2 = arith.constant 2 : index
  %c1 = arith.constant 1 : index
  %c0 = arith.constant 0 : index
  %batches = memref.dim %q, %c0 : !heads
  %heads = memref.dim %q, %c1 : !heads
  %q_len = memref.dim %q, %c2 : !heads
  %kv_heads = memref.dim %k, %c1 : !heads
  %kv_len = memref.dim %k, %c2 : !heads
  %group = arith.divui %heads, %kv_heads : index
  %blocks = arith.ceildivsi %q_len, %c128 : index
  %all_heads = arith.muli %batches, %heads : index
  %tiles = arith.muli %blocks, %all_heads : index
  %block = "warp.block_id"() : () -> index
  %step = "warp.block_count"() : () -> index
  %q_tile = "warp.alloc"() : () -> !q_buffer
  %k_ring = "warp.alloc"() : () -> !ring
  %v_ring = "warp.alloc"() : () -> !ring
  %messages = "warp.alloc"() : () -> !messages
  %q_full = "warp.mbarrier"() : () -> !q_full
  %q_free = "warp.mbarrier"() : () -> !q_free
  %k_full = "warp.mbarrier"() : () -> !full
  %k_free = "warp.mbarrier"() : () -> !free
  %v_full = "warp.mbarrier"() : () -> !full
  %v_free = "warp.mbarrier"() : () -> !free
  "warp.role"() ({
  ^bb0(%warpgroup: index):
    %0:2 = scf.for %tile = %block to %tiles step %step iter_args(%count = %c0, %round = %c0) -> (index, index) {
      %1 = arith.divui %tile, %all_heads : index
      %2 = arith.remui %tile, %all_heads : index
      %batch = arith.divui %2, %heads : index
      %head = arith.remui %2, %heads : index
      %3 = arith.subi %blocks, %c1 : index
      %4 = arith.subi %3, %1 : index
      %q_begin = arith.muli %4, %c128 : index
      %5 = arith.addi %q_begin, %c128 : index
      %kv_end = arith.minsi %5, %kv_len : index
      %kv_blocks = arith.ceildivsi %kv_end, %c64 : index
      %6 = arith.addi %q_begin, %c1 : index
      %whole_end = arith.minsi %6, %kv_len : index
      %kv_head = arith.divui %head, %group : index
      %7 = arith.andi %round, %c1 : index
      %8 = arith.xori %7, %c1 : index
      "warp.wait"(%q_free, %c0, %8) : (!q_free, index, index) -> ()
      %q_view = "warp.view"(%q_tile, %c0, %c0, %c0) : (!q_buffer, index, index, index) -> !q_tile
      "warp.elect"() ({
        "warp.arrive_expect"(%q_full, %c0) {bytes = 16384 : i64} : (!q_full, index) -> ()
        "warp.copy_async"(%q, %batch, %head, %q_begin, %c0, %q_view, %q_full, %c0) : (!heads, index, index, index, index, !q_tile, !q_full, index) -> ()
      }) : () -> ()
      %9 = scf.for %n = %c0 to %kv_blocks step %c1 iter_args(%count_5 = %count) -> (index) {
        %11 = arith.subi %kv_blocks, %c1 : index
        %12 = arith.subi %11, %n : index
        %kv_begin = arith.muli %12, %c64 : index
        %13 = arith.index_cast %kv_begin : index to i32
        %14 = arith.addi %kv_begin, %c64 : index
        %15 = arith.cmpi sgt, %14, %whole_end : index
        %16 = arith.extui %15 : i1 to i32
        %stage = arith.remui %count_5, %c3 : index
        %17 = arith.divui %count_5, %c3 : index
        %phase = arith.andi %17, %c1 : index
        %18 = arith.xori %phase, %c1 : index
        "warp.wait"(%k_free, %stage, %18) : (!free, index, index) -> ()
        %k_view = "warp.view"(%k_ring, %stage, %c0, %c0) : (!ring, index, index, index) -> !tile
        "warp.elect"() ({
          memref.store %13, %messages[%stage, %c0] : !messages
          memref.store %16, %messages[%stage, %c1] : !messages
          "warp.arrive_expect"(%k_full, %stage) {bytes = 8192 : i64} : (!full, index) -> ()
          "warp.copy_async"(%k, %batch, %kv_head, %kv_begin, %c0, %k_view, %k_full, %stage) : (!heads, index, index, index, index, !tile, !full, index) -> ()
        }) : () -> ()
        "warp.wait"(%v_free, %stage, %18) : (!free, index, index) -> ()
        %v_view = "warp.view"(%v_ring, %stage, %c0, %c0) : (!ring, index, index, index) -> !tile
        "warp.elect"() ({
          "warp.arrive_expect"(%v_full, %stage) {bytes = 8192 : i64} : (!full, index) -> ()
          "warp.copy_async"(%v, %batch, %kv_head, %kv_begin, %c0, %v_view, %v_full, %stage) : (!heads, index, index, index, index, !tile, !full, index) -> ()
        }) : () -> ()
        %19 = arith.addi %count_5, %c1 : index
        scf.yield %19 : index
      }
      %10 = arith.addi %round, %c1 : index
      scf.yield %9, %10 : index, index
    }
  }) {registers = 24 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64} : () -> ()
  "warp.role"() ({
  ^bb0(%warpgroup: index):
    %my_barrier = arith.addi %warpgroup, %c1 : index
    %0 = arith.remui %my_barrier, %c2 : index
    %next_barrier = arith.addi %0, %c1 : index
    %1 = arith.cmpi eq, %warpgroup, %c1 : index
    scf.if %1 {
      "warp.named_arrive"(%c1) {threads = 256 : i64} : (index) -> ()
    }
    %my_row = arith.muli %warpgroup, %c64 : index
    %2:2 = scf.for %tile = %block to %tiles step %step iter_args(%count = %c0, %round = %c0) -> (index, index) {
      %3 = arith.divui %tile, %all_heads : index
      %4 = arith.remui %tile, %all_heads : index
      %batch = arith.divui %4, %heads : index
      %head = arith.remui %4, %heads : index
      %5 = arith.subi %blocks, %c1 : index
      %6 = arith.subi %5, %3 : index
      %q_begin = arith.muli %6, %c128 : index
      %7 = arith.addi %q_begin, %c128 : index
      %kv_end = arith.minsi %7, %kv_len : index
      %kv_blocks = arith.ceildivsi %kv_end, %c64 : index
      %row = arith.addi %q_begin, %my_row : index
      %queries = "warp.view"(%q_tile, %c0, %my_row, %c0) : (!q_buffer, index, index, index) -> !tile
      %8 = arith.andi %round, %c1 : index
      "warp.wait"(%q_full, %c0, %8) : (!q_full, index, index) -> ()
      %max_start = "warp.map"() ({
      ^bb0(%i: index):
        "warp.yield"(%lowest) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> !rows
      %sum_start = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        "warp.yield"(%zero) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 4>} : () -> !parts
      %o_start = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        "warp.yield"(%zero) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !acc
      %stage = arith.remui %count, %c3 : index
      %9 = arith.divui %count, %c3 : index
      %phase = arith.andi %9, %c1 : index
      %keys = "warp.view"(%k_ring, %stage, %c0, %c0) : (!ring, index, index, index) -> !tile
      %s_registers = "warp.registers"() : () -> !acc
      "warp.wait"(%k_full, %stage, %phase) : (!full, index, index) -> ()
      "warp.mma_begin"() : () -> ()
      %s_pending = "warp.mma_async"(%s_registers, %queries, %keys, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %s = "warp.mma_wait"(%s_pending) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
      %kv_begin = memref.load %messages[%stage, %c0] : !messages
      %partial = memref.load %messages[%stage, %c1] : !messages
      "warp.arrive"(%k_free, %stage) : (!free, index) -> ()
      %10 = arith.index_cast %kv_begin : i32 to index
      %11 = arith.cmpi ne, %partial, %no : i32
      %12:2 = scf.if %11 -> (!acc, !parts) {
        %19:2 = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          %20 = arith.addi %10, %j : index
          %21 = arith.cmpi slt, %20, %kv_len : index
          %22 = arith.addi %row, %i : index
          %23 = arith.cmpi sge, %22, %20 : index
          %24 = arith.andi %21, %23 : i1
          %x = tensor.extract %s[%i, %j] : !acc
          %25 = arith.select %24, %x, %minus_inf : f32
          "warp.yield"(%25, %25) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
        }) {reductions = ["", "max"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 64>} : () -> (!acc, !parts)
        scf.yield %19#0, %19#1 : !acc, !parts
      } else {
        %19 = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          %x = tensor.extract %s[%i, %j] : !acc
          "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !parts
        scf.yield %s, %19 : !acc, !parts
      }
      %row_max = "warp.reduce"(%12#1) {kind = "max"} : (!parts) -> !rows
      %max_new:2 = "warp.map"() ({
      ^bb0(%i: index):
        %x = tensor.extract %max_start[%i] : !rows
        %x_8 = tensor.extract %row_max[%i] : !rows
        %19 = arith.maximumf %x, %x_8 : f32
        %20 = arith.subf %x, %19 : f32
        %21 = arith.mulf %20, %scale : f32
        %22 = math.exp2 %21 : f32
        "warp.yield"(%19, %22) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
      }) {reductions = ["", ""], resultSegmentSizes = array<i32: 2, 0, 0>, shape = array<i64: 64>} : () -> (!rows, !rows)
      %weights:2 = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %x = tensor.extract %12#0[%i, %j] : !acc
        %x_8 = tensor.extract %max_new#0[%i] : !rows
        %19 = arith.subf %x, %x_8 : f32
        %20 = arith.mulf %19, %scale : f32
        %21 = math.exp2 %20 : f32
        %22 = arith.truncf %21 : f32 to f16
        "warp.yield"(%22, %21) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
      }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 64>} : () -> (!weights, !parts)
      %sum_new = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %x = tensor.extract %sum_start[%i, %j] : !parts
        %x_8 = tensor.extract %weights#1[%i, %j] : !parts
        %19 = arith.addf %x, %x_8 : f32
        "warp.yield"(%19) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 4>} : () -> !parts
      %13 = arith.addi %count, %c1 : index
      %14:5 = scf.for %n = %c1 to %kv_blocks step %c1 iter_args(%max = %max_new#0, %sum = %sum_new, %weights_8 = %weights#0, %o_9 = %o_start, %count_10 = %13) -> (!rows, !parts, !weights, !acc, index) {
        %19 = arith.subi %count_10, %c1 : index
        %stage_11 = arith.remui %count_10, %c3 : index
        %20 = arith.divui %count_10, %c3 : index
        %phase_12 = arith.andi %20, %c1 : index
        %keys_13 = "warp.view"(%k_ring, %stage_11, %c0, %c0) : (!ring, index, index, index) -> !tile
        %s_registers_14 = "warp.registers"() : () -> !acc
        "warp.wait"(%k_full, %stage_11, %phase_12) : (!full, index, index) -> ()
        "warp.named_sync"(%my_barrier) {threads = 256 : i64} : (index) -> ()
        "warp.mma_begin"() : () -> ()
        %s_pending_15 = "warp.mma_async"(%s_registers_14, %queries, %keys_13, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
        "warp.mma_commit"() : () -> ()
        %stage_16 = arith.remui %19, %c3 : index
        %21 = arith.divui %19, %c3 : index
        %phase_17 = arith.andi %21, %c1 : index
        %values_18 = "warp.view"(%v_ring, %stage_16, %c0, %c0) : (!ring, index, index, index) -> !tile
        "warp.wait"(%v_full, %stage_16, %phase_17) : (!full, index, index) -> ()
        "warp.mma_begin"() : () -> ()
        %o_pending_19 = "warp.mma_async"(%o_9, %weights_8, %values_18, %true) {transpose_a = false, transpose_b = false} : (!acc, !weights, !tile, i1) -> !warp.pending<!acc>
        "warp.mma_commit"() : () -> ()
        "warp.named_arrive"(%next_barrier) {threads = 256 : i64} : (index) -> ()
        %s_20 = "warp.mma_wait"(%s_pending_15) {pending = 1 : i64} : (!warp.pending<!acc>) -> !acc
        %kv_begin_21 = memref.load %messages[%stage_11, %c0] : !messages
        %partial_22 = memref.load %messages[%stage_11, %c1] : !messages
        "warp.arrive"(%k_free, %stage_11) : (!free, index) -> ()
        %22 = arith.index_cast %kv_begin_21 : i32 to index
        %23 = arith.cmpi ne, %partial_22, %no : i32
        %24:2 = scf.if %23 -> (!acc, !parts) {
          %26:2 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %27 = arith.addi %22, %j : index
            %28 = arith.cmpi slt, %27, %kv_len : index
            %29 = arith.addi %row, %i : index
            %30 = arith.cmpi sge, %29, %27 : index
            %31 = arith.andi %28, %30 : i1
            %x = tensor.extract %s_20[%i, %j] : !acc
            %32 = arith.select %31, %x, %minus_inf : f32
            "warp.yield"(%32, %32) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
          }) {reductions = ["", "max"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 64>} : () -> (!acc, !parts)
          scf.yield %26#0, %26#1 : !acc, !parts
        } else {
          %26 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %x = tensor.extract %s_20[%i, %j] : !acc
            "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !parts
          scf.yield %s_20, %26 : !acc, !parts
        }
        %row_max_23 = "warp.reduce"(%24#1) {kind = "max"} : (!parts) -> !rows
        %max_new_24:2 = "warp.map"() ({
        ^bb0(%i: index):
          %x = tensor.extract %max[%i] : !rows
          %x_28 = tensor.extract %row_max_23[%i] : !rows
          %26 = arith.maximumf %x, %x_28 : f32
          %27 = arith.subf %x, %26 : f32
          %28 = arith.mulf %27, %scale : f32
          %29 = math.exp2 %28 : f32
          "warp.yield"(%26, %29) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
        }) {reductions = ["", ""], resultSegmentSizes = array<i32: 2, 0, 0>, shape = array<i64: 64>} : () -> (!rows, !rows)
        %o_25 = "warp.mma_wait"(%o_pending_19) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
        "warp.arrive"(%v_free, %stage_16) : (!free, index) -> ()
        %weights_26:2 = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          %x = tensor.extract %24#0[%i, %j] : !acc
          %x_28 = tensor.extract %max_new_24#0[%i] : !rows
          %26 = arith.subf %x, %x_28 : f32
          %27 = arith.mulf %26, %scale : f32
          %28 = math.exp2 %27 : f32
          %29 = arith.truncf %28 : f32 to f16
          "warp.yield"(%29, %28) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
        }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 64>} : () -> (!weights, !parts)
        %sum_new_27 = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          %x = tensor.extract %sum[%i, %j] : !parts
          %x_28 = tensor.extract %max_new_24#1[%i] : !rows
          %26 = arith.mulf %x, %x_28 : f32
          %x_29 = tensor.extract %weights_26#1[%i, %j] : !parts
          %27 = arith.addf %26, %x_29 : f32
          "warp.yield"(%27) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 4>} : () -> !parts
        %o_rescaled = "warp.each_warp"() ({
          %26 = "warp.map"() ({
          ^bb0(%i: index):
            %x = tensor.extract %max_new_24#1[%i] : !rows
            %28 = arith.cmpf une, %x, %one : f32
            "warp.yield"(%28) {operandSegmentSizes = array<i32: 1, 0, 0>} : (i1) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> !flags
          %changed = "warp.vote"(%26) : (!flags) -> i1
          %27 = scf.if %changed -> (!acc) {
            %28 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %x = tensor.extract %o_25[%i, %j] : !acc
              %x_28 = tensor.extract %max_new_24#1[%i] : !rows
              %29 = arith.mulf %x, %x_28 : f32
              "warp.yield"(%29) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !acc
            scf.yield %28 : !acc
          } else {
            scf.yield %o_25 : !acc
          }
          "warp.yield"(%27) {operandSegmentSizes = array<i32: 1, 0, 0>} : (!acc) -> ()
        }) {resultSegmentSizes = array<i32: 1, 0, 0>} : () -> !acc
        %25 = arith.addi %count_10, %c1 : index
        scf.yield %max_new_24#0, %sum_new_27, %weights_26#0, %o_rescaled, %25 : !rows, !parts, !weights, !acc, index
      }
      %15 = arith.subi %14#4, %c1 : index
      %stage_5 = arith.remui %15, %c3 : index
      %16 = arith.divui %15, %c3 : index
      %phase_6 = arith.andi %16, %c1 : index
      %values = "warp.view"(%v_ring, %stage_5, %c0, %c0) : (!ring, index, index, index) -> !tile
      "warp.wait"(%v_full, %stage_5, %phase_6) : (!full, index, index) -> ()
      "warp.mma_begin"() : () -> ()
      %o_pending = "warp.mma_async"(%14#3, %14#2, %values, %true) {transpose_a = false, transpose_b = false} : (!acc, !weights, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %o_7 = "warp.mma_wait"(%o_pending) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
      "warp.arrive"(%v_free, %stage_5) : (!free, index) -> ()
      %total = "warp.reduce"(%14#1) {kind = "sum"} : (!parts) -> !rows
      %inverse = "warp.map"() ({
      ^bb0(%i: index):
        %x = tensor.extract %total[%i] : !rows
        %19 = arith.divf %one, %x : f32
        "warp.yield"(%19) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> !rows
      %result = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %x = tensor.extract %o_7[%i, %j] : !acc
        %x_8 = tensor.extract %inverse[%i] : !rows
        %19 = arith.mulf %x, %x_8 : f32
        %20 = arith.truncf %19 : f32 to f16
        "warp.yield"(%20) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f16) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !weights
      "warp.write"(%result, %queries) : (!weights, !tile) -> ()
      "warp.fence_async"() : () -> ()
      %17 = arith.addi %warpgroup, %c8 : index
      "warp.named_sync"(%17) {threads = 128 : i64} : (index) -> ()
      "warp.elect"() ({
        "warp.store_async"(%queries, %o, %batch, %head, %row, %c0) : (!tile, !heads, index, index, index, index) -> ()
        "warp.store_commit"() : () -> ()
        "warp.store_wait"() {pending = 0 : i64, read = true} : () -> ()
        "warp.arrive"(%q_free, %c0) : (!q_free, index) -> ()
      }) : () -> ()
      %log_sum = "warp.map"() ({
      ^bb0(%i: index):
        %x = tensor.extract %14#0[%i] : !rows
        %19 = arith.mulf %x, %scale : f32
        %x_8 = tensor.extract %total[%i] : !rows
        %20 = math.log2 %x_8 : f32
        %21 = arith.addf %19, %20 : f32
        %22 = arith.mulf %21, %ln2 : f32
        "warp.yield"(%22) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> !rows
      "warp.store"(%log_sum, %lse, %batch, %head, %row) : (!rows, !logs, index, index, index) -> ()
      %18 = arith.addi %round, %c1 : index
      scf.yield %14#4, %18 : index, index
    }
  }) {registers = 240 : i64, sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "attention", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "causal_forward"} : () -> ()

