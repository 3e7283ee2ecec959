// Causal softmax attention in f16, head dimension 64, as the passes of schedule.md leave it; test/unit/schedule_listing.py made it.
module {
  "warp.kernel"() ({
  ^bb0(%q: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %k: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %v: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %o: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %lse: memref<?x?x?xf32, strided<[?, ?, ?]>>):
    %true = arith.constant true
    %false = arith.constant false
    %cst = arith.constant 0.693147182 : f32
    %cst_0 = arith.constant 1.000000e+00 : f32
    %cst_1 = arith.constant 3.40282347E+38 : f32
    %cst_2 = arith.constant -1.44269502 : f32
    %cst_3 = arith.constant 0.180336878 : f32
    %cst_4 = arith.constant 1.44269502 : f32
    %cst_5 = arith.constant 5.54517746 : f32
    %c64 = arith.constant 64 : index
    %cst_6 = arith.constant 0xFF800000 : f32
    %cst_7 = arith.constant 1.250000e-01 : f32
    %c128 = arith.constant 128 : index
    %c0 = arith.constant 0 : index
    %cst_8 = arith.constant 0.000000e+00 : f32
    %cst_9 = arith.constant -3.40282347E+38 : f32
    %c192 = arith.constant 192 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %dim = memref.dim %k, %c2 : memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
    %dim_10 = memref.dim %q, %c1 : memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
    %dim_11 = memref.dim %k, %c1 : memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
    %0 = arith.divsi %dim_10, %dim_11 : index
    %dim_12 = memref.dim %q, %c2 : memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
    %1 = arith.subi %dim_12, %c1 : index
    %q_buffer = "warp.alloc"() : () -> memref<1x192x64xf16, #warp.shared<128 : i64>>
    %q_full = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 1 : i64>
    %q_free = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 12 : i64>
    %k_buffer = "warp.alloc"() : () -> memref<3x128x64xf16, #warp.shared<128 : i64>>
    %k_full = "warp.mbarrier"() : () -> !warp.barrier<3 : i64, 1 : i64>
    %k_free = "warp.mbarrier"() : () -> !warp.barrier<3 : i64, 12 : i64>
    %v_buffer = "warp.alloc"() : () -> memref<3x128x64xf16, #warp.shared<128 : i64>>
    %v_full = "warp.mbarrier"() : () -> !warp.barrier<3 : i64, 1 : i64>
    %v_free = "warp.mbarrier"() : () -> !warp.barrier<3 : i64, 12 : i64>
    %dim_13 = memref.dim %q, %c0 : memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
    %2 = arith.muli %dim_13, %dim_10 : index
    %blocks = arith.ceildivsi %dim_12, %c192 : index
    %tiles = arith.muli %2, %blocks : index
    "warp.role"() ({
    ^bb0(%warpgroup: index):
      %3 = "warp.block_id"() : () -> index
      %4 = "warp.block_count"() : () -> index
      %5:3 = scf.for %tile = %3 to %tiles step %4 iter_args(%q_count = %c0, %k_count = %c0, %v_count = %c0) -> (index, index, index) {
        %6 = arith.divsi %tile, %blocks : index
        %block = arith.remsi %tile, %blocks : index
        %head = arith.remsi %6, %dim_10 : index
        %batch = arith.divsi %6, %dim_10 : index
        %7 = arith.muli %block, %c192 : index
        %8 = arith.addi %7, %c192 : index
        %9 = arith.minsi %8, %dim_12 : index
        %10 = arith.divsi %head, %0 : index
        %q_stage:2 = "warp.stage"(%q_count) {stages = 1 : i64} : (index) -> (index, index)
        %q_tile = "warp.view"(%q_buffer, %q_stage#0, %c0, %c0) : (memref<1x192x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<192x64xf16, #warp.shared<128 : i64>>
        %11 = arith.xori %q_stage#1, %c1 : index
        "warp.wait"(%q_free, %q_stage#0, %11) : (!warp.barrier<1 : i64, 12 : i64>, index, index) -> ()
        "warp.elect"() ({
          "warp.arrive_expect"(%q_full, %q_stage#0) {bytes = 24576 : i64} : (!warp.barrier<1 : i64, 1 : i64>, index) -> ()
          "warp.copy_async"(%q, %batch, %head, %7, %c0, %q_tile, %q_full, %q_stage#0) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index, memref<192x64xf16, #warp.shared<128 : i64>>, !warp.barrier<1 : i64, 1 : i64>, index) -> ()
        }) : () -> ()
        %12 = arith.addi %q_count, %c1 : index
        %13 = arith.addi %7, %c1 : index
        %14 = arith.minsi %13, %dim : index
        %15 = arith.minsi %9, %dim : index
        %16 = arith.divsi %14, %c128 : index
        %17 = arith.muli %16, %c128 : index
        %18 = arith.maxsi %17, %c0 : index
        %19:2 = scf.for %arg10 = %c0 to %18 step %c128 iter_args(%k_count_14 = %k_count, %v_count_15 = %v_count) -> (index, index) {
          %k_stage:2 = "warp.stage"(%k_count_14) {stages = 3 : i64} : (index) -> (index, index)
          %k_tile = "warp.view"(%k_buffer, %k_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          %21 = arith.xori %k_stage#1, %c1 : index
          "warp.wait"(%k_free, %k_stage#0, %21) : (!warp.barrier<3 : i64, 12 : i64>, index, index) -> ()
          "warp.elect"() ({
            "warp.arrive_expect"(%k_full, %k_stage#0) {bytes = 16384 : i64} : (!warp.barrier<3 : i64, 1 : i64>, index) -> ()
            "warp.copy_async"(%k, %batch, %10, %arg10, %c0, %k_tile, %k_full, %k_stage#0) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index, memref<128x64xf16, #warp.shared<128 : i64>>, !warp.barrier<3 : i64, 1 : i64>, index) -> ()
          }) : () -> ()
          %22 = arith.addi %k_count_14, %c1 : index
          %v_stage:2 = "warp.stage"(%v_count_15) {stages = 3 : i64} : (index) -> (index, index)
          %v_tile = "warp.view"(%v_buffer, %v_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          %23 = arith.xori %v_stage#1, %c1 : index
          "warp.wait"(%v_free, %v_stage#0, %23) : (!warp.barrier<3 : i64, 12 : i64>, index, index) -> ()
          "warp.elect"() ({
            "warp.arrive_expect"(%v_full, %v_stage#0) {bytes = 16384 : i64} : (!warp.barrier<3 : i64, 1 : i64>, index) -> ()
            "warp.copy_async"(%v, %batch, %10, %arg10, %c0, %v_tile, %v_full, %v_stage#0) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index, memref<128x64xf16, #warp.shared<128 : i64>>, !warp.barrier<3 : i64, 1 : i64>, index) -> ()
          }) : () -> ()
          %24 = arith.addi %v_count_15, %c1 : index
          scf.yield %22, %24 : index, index
        }
        %20:2 = scf.for %arg10 = %18 to %15 step %c128 iter_args(%k_count_14 = %19#0, %v_count_15 = %19#1) -> (index, index) {
          %k_stage:2 = "warp.stage"(%k_count_14) {stages = 3 : i64} : (index) -> (index, index)
          %k_tile = "warp.view"(%k_buffer, %k_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          %21 = arith.xori %k_stage#1, %c1 : index
          "warp.wait"(%k_free, %k_stage#0, %21) : (!warp.barrier<3 : i64, 12 : i64>, index, index) -> ()
          "warp.elect"() ({
            "warp.arrive_expect"(%k_full, %k_stage#0) {bytes = 16384 : i64} : (!warp.barrier<3 : i64, 1 : i64>, index) -> ()
            "warp.copy_async"(%k, %batch, %10, %arg10, %c0, %k_tile, %k_full, %k_stage#0) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index, memref<128x64xf16, #warp.shared<128 : i64>>, !warp.barrier<3 : i64, 1 : i64>, index) -> ()
          }) : () -> ()
          %22 = arith.addi %k_count_14, %c1 : index
          %v_stage:2 = "warp.stage"(%v_count_15) {stages = 3 : i64} : (index) -> (index, index)
          %v_tile = "warp.view"(%v_buffer, %v_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          %23 = arith.xori %v_stage#1, %c1 : index
          "warp.wait"(%v_free, %v_stage#0, %23) : (!warp.barrier<3 : i64, 12 : i64>, index, index) -> ()
          "warp.elect"() ({
            "warp.arrive_expect"(%v_full, %v_stage#0) {bytes = 16384 : i64} : (!warp.barrier<3 : i64, 1 : i64>, index) -> ()
            "warp.copy_async"(%v, %batch, %10, %arg10, %c0, %v_tile, %v_full, %v_stage#0) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index, memref<128x64xf16, #warp.shared<128 : i64>>, !warp.barrier<3 : i64, 1 : i64>, index) -> ()
          }) : () -> ()
          %24 = arith.addi %v_count_15, %c1 : index
          scf.yield %22, %24 : index, index
        }
        scf.yield %12, %20#0, %20#1 : index, index, index
      }
    }) {registers = 32 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64} : () -> ()
    "warp.role"() ({
    ^bb0(%warpgroup: index):
      %first_row = arith.muli %warpgroup, %c64 : index
      %3 = "warp.block_id"() : () -> index
      %4 = "warp.block_count"() : () -> index
      %5:3 = scf.for %tile = %3 to %tiles step %4 iter_args(%q_count = %c0, %k_count = %c0, %v_count = %c0) -> (index, index, index) {
        %6 = arith.divsi %tile, %blocks : index
        %block = arith.remsi %tile, %blocks : index
        %head = arith.remsi %6, %dim_10 : index
        %batch = arith.divsi %6, %dim_10 : index
        %7 = arith.muli %block, %c192 : index
        %8 = arith.addi %7, %c192 : index
        %9 = arith.minsi %8, %dim_12 : index
        %q_stage:2 = "warp.stage"(%q_count) {stages = 1 : i64} : (index) -> (index, index)
        "warp.wait"(%q_full, %q_stage#0, %q_stage#1) : (!warp.barrier<1 : i64, 1 : i64>, index, index) -> ()
        %10 = arith.addi %q_count, %c1 : index
        %11:2 = "warp.map"() ({
        ^bb0(%i: index):
          "warp.yield"(%cst_9, %cst_8) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
        }) {reductions = ["", ""], resultSegmentSizes = array<i32: 2, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
        %12 = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          "warp.yield"(%cst_8) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
        %13 = arith.addi %7, %c1 : index
        %14 = arith.minsi %13, %dim : index
        %15 = arith.minsi %9, %dim : index
        %16 = arith.divsi %14, %c128 : index
        %17 = arith.muli %16, %c128 : index
        %18 = arith.maxsi %17, %c0 : index
        %19 = arith.cmpi sgt, %18, %c0 : index
        %20:5 = scf.if %19 -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index) {
          %k_stage:2 = "warp.stage"(%k_count) {stages = 3 : i64} : (index) -> (index, index)
          %k_tile = "warp.view"(%k_buffer, %k_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          "warp.wait"(%k_full, %k_stage#0, %k_stage#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
          %26 = arith.addi %k_count, %c1 : index
          %27 = "warp.view"(%q_buffer, %q_stage#0, %first_row, %c0) : (memref<1x192x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<64x64xf16, #warp.shared<128 : i64>>
          %28 = "warp.registers"() : () -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
          "warp.mma_begin"() : () -> ()
          %29 = "warp.mma_async"(%28, %27, %k_tile, %false) {transpose_a = false, transpose_b = true} : (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>
          "warp.mma_commit"() : () -> ()
          %30 = "warp.mma_wait"(%29) {pending = 0 : i64} : (!warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
          "warp.arrive"(%k_free, %k_stage#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
          %31 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %extracted = tensor.extract %30[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            "warp.yield"(%extracted) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 128>} : () -> tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
          %32 = "warp.reduce"(%31) {kind = "max"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %33:3 = "warp.map"() ({
          ^bb0(%i: index):
            %extracted = tensor.extract %11#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %extracted_14 = tensor.extract %32[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %42 = arith.mulf %extracted_14, %cst_7 : f32
            %max_new = arith.maximumf %extracted, %42 {gpu.free} : f32
            %43 = arith.subf %max_new, %extracted : f32
            %44 = arith.cmpf ole, %43, %cst_5 : f32
            %max_new_15 = arith.select %44, %extracted, %max_new : f32
            %45 = arith.subf %extracted, %max_new_15 : f32
            %46 = arith.mulf %45, %cst_4 : f32
            %rescale = math.exp2 %46 : f32
            %extracted_16 = tensor.extract %11#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %47 = arith.mulf %extracted_16, %rescale : f32
            "warp.yield"(%max_new_15, %rescale, %47) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
          }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
          %34:2 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %extracted = tensor.extract %30[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            %extracted_14 = tensor.extract %33#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %42 = arith.mulf %extracted_14, %cst_2 : f32
            %43 = arith.minimumf %42, %cst_1 : f32
            %44 = math.fma %extracted, %cst_3, %43 : f32
            %weight = math.exp2 %44 : f32
            %45 = arith.truncf %weight : f32 to f16
            "warp.yield"(%45, %weight) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
          }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
          %35 = "warp.reduce"(%34#1) {kind = "sum"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %36 = "warp.map"() ({
          ^bb0(%i: index):
            %extracted = tensor.extract %33#2[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %extracted_14 = tensor.extract %35[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %sum_new = arith.addf %extracted, %extracted_14 : f32
            "warp.yield"(%sum_new) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %37:7 = scf.for %arg10 = %c128 to %18 step %c128 iter_args(%arg11 = %33#0, %arg12 = %36, %arg13 = %12, %k_count_14 = %26, %v_count_15 = %v_count, %arg16 = %33#1, %arg17 = %34#0) -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>) {
            %k_stage_16:2 = "warp.stage"(%k_count_14) {stages = 3 : i64} : (index) -> (index, index)
            %k_tile_17 = "warp.view"(%k_buffer, %k_stage_16#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
            "warp.wait"(%k_full, %k_stage_16#0, %k_stage_16#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
            %42 = arith.addi %k_count_14, %c1 : index
            %43 = "warp.registers"() : () -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            "warp.mma_begin"() : () -> ()
            %44 = "warp.mma_async"(%43, %27, %k_tile_17, %false) {transpose_a = false, transpose_b = true} : (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>
            "warp.mma_commit"() : () -> ()
            %v_stage_18:2 = "warp.stage"(%v_count_15) {stages = 3 : i64} : (index) -> (index, index)
            %v_tile_19 = "warp.view"(%v_buffer, %v_stage_18#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
            "warp.wait"(%v_full, %v_stage_18#0, %v_stage_18#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
            %45 = arith.addi %v_count_15, %c1 : index
            %46 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %arg13[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
              %extracted_20 = tensor.extract %arg16[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %56 = arith.mulf %extracted, %extracted_20 : f32
              "warp.yield"(%56) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            "warp.mma_begin"() : () -> ()
            %47 = "warp.mma_async"(%46, %arg17, %v_tile_19, %true) {transpose_a = false, transpose_b = false} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
            "warp.mma_commit"() : () -> ()
            %48 = "warp.mma_wait"(%44) {pending = 1 : i64} : (!warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            "warp.arrive"(%k_free, %k_stage_16#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
            %49 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %48[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              "warp.yield"(%extracted) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 128>} : () -> tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            %50 = "warp.reduce"(%49) {kind = "max"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %51:3 = "warp.map"() ({
            ^bb0(%i: index):
              %extracted = tensor.extract %arg11[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %extracted_20 = tensor.extract %50[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %56 = arith.mulf %extracted_20, %cst_7 : f32
              %max_new = arith.maximumf %extracted, %56 {gpu.free} : f32
              %57 = arith.subf %max_new, %extracted : f32
              %58 = arith.cmpf ole, %57, %cst_5 : f32
              %max_new_21 = arith.select %58, %extracted, %max_new : f32
              %59 = arith.subf %extracted, %max_new_21 : f32
              %60 = arith.mulf %59, %cst_4 : f32
              %rescale = math.exp2 %60 : f32
              %extracted_22 = tensor.extract %arg12[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %61 = arith.mulf %extracted_22, %rescale : f32
              "warp.yield"(%max_new_21, %rescale, %61) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
            }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
            %52 = "warp.mma_wait"(%47) {pending = 0 : i64} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            "warp.arrive"(%v_free, %v_stage_18#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
            %53:2 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %48[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              %extracted_20 = tensor.extract %51#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %56 = arith.mulf %extracted_20, %cst_2 : f32
              %57 = arith.minimumf %56, %cst_1 : f32
              %58 = math.fma %extracted, %cst_3, %57 : f32
              %weight = math.exp2 %58 : f32
              %59 = arith.truncf %weight : f32 to f16
              "warp.yield"(%59, %weight) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
            }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
            %54 = "warp.reduce"(%53#1) {kind = "sum"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %55 = "warp.map"() ({
            ^bb0(%i: index):
              %extracted = tensor.extract %51#2[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %extracted_20 = tensor.extract %54[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %sum_new = arith.addf %extracted, %extracted_20 : f32
              "warp.yield"(%sum_new) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            scf.yield %51#0, %55, %52, %42, %45, %51#1, %53#0 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>
          }
          %v_stage:2 = "warp.stage"(%37#4) {stages = 3 : i64} : (index) -> (index, index)
          %v_tile = "warp.view"(%v_buffer, %v_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          "warp.wait"(%v_full, %v_stage#0, %v_stage#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
          %38 = arith.addi %37#4, %c1 : index
          %39 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %extracted = tensor.extract %37#2[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            %extracted_14 = tensor.extract %37#5[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %42 = arith.mulf %extracted, %extracted_14 : f32
            "warp.yield"(%42) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          "warp.mma_begin"() : () -> ()
          %40 = "warp.mma_async"(%39, %37#6, %v_tile, %true) {transpose_a = false, transpose_b = false} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
          "warp.mma_commit"() : () -> ()
          %41 = "warp.mma_wait"(%40) {pending = 0 : i64} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          "warp.arrive"(%v_free, %v_stage#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
          scf.yield %37#0, %37#1, %41, %37#3, %38 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index
        } else {
          scf.yield %11#0, %11#1, %12, %k_count, %v_count : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index
        }
        %21 = arith.cmpi slt, %18, %15 : index
        %22:5 = scf.if %21 -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index) {
          %26 = arith.subi %15, %18 : index
          %27 = arith.minsi %26, %c128 : index
          %k_stage:2 = "warp.stage"(%20#3) {stages = 3 : i64} : (index) -> (index, index)
          %k_tile = "warp.view"(%k_buffer, %k_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          "warp.wait"(%k_full, %k_stage#0, %k_stage#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
          %28 = arith.addi %20#3, %c1 : index
          %29 = "warp.view"(%q_buffer, %q_stage#0, %first_row, %c0) : (memref<1x192x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<64x64xf16, #warp.shared<128 : i64>>
          %30 = "warp.registers"() : () -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
          "warp.mma_begin"() : () -> ()
          %31 = "warp.mma_async"(%30, %29, %k_tile, %false) {transpose_a = false, transpose_b = true} : (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>
          "warp.mma_commit"() : () -> ()
          %32 = "warp.mma_wait"(%31) {pending = 0 : i64} : (!warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
          "warp.arrive"(%k_free, %k_stage#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
          %33:2 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %45 = arith.addi %first_row, %i : index
            %46 = arith.addi %7, %45 : index
            %47 = arith.minsi %46, %1 : index
            %extracted = tensor.extract %32[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            %48 = arith.addi %18, %j : index
            %49 = arith.cmpi sge, %47, %48 : index
            %50 = arith.select %49, %extracted, %cst_6 : f32
            %51 = arith.cmpi slt, %j, %27 : index
            %52 = arith.select %51, %50, %cst_9 : f32
            "warp.yield"(%50, %52) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
          }) {reductions = ["", "max"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
          %34 = "warp.reduce"(%33#1) {kind = "max"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %35:3 = "warp.map"() ({
          ^bb0(%i: index):
            %extracted = tensor.extract %20#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %extracted_14 = tensor.extract %34[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %45 = arith.mulf %extracted_14, %cst_7 : f32
            %46 = arith.cmpf oeq, %extracted_14, %cst_9 : f32
            %47 = arith.select %46, %cst_9, %45 : f32
            %max_new = arith.maximumf %extracted, %47 {gpu.free} : f32
            %48 = arith.subf %max_new, %extracted : f32
            %49 = arith.cmpf ole, %48, %cst_5 : f32
            %max_new_15 = arith.select %49, %extracted, %max_new : f32
            %50 = arith.subf %extracted, %max_new_15 : f32
            %51 = arith.mulf %50, %cst_4 : f32
            %rescale = math.exp2 %51 : f32
            %extracted_16 = tensor.extract %20#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %52 = arith.mulf %extracted_16, %rescale : f32
            "warp.yield"(%max_new_15, %rescale, %52) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
          }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
          %36:2 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %extracted = tensor.extract %33#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            %extracted_14 = tensor.extract %35#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %45 = arith.mulf %extracted_14, %cst_2 : f32
            %46 = arith.minimumf %45, %cst_1 : f32
            %47 = math.fma %extracted, %cst_3, %46 : f32
            %weight = math.exp2 %47 : f32
            %48 = arith.cmpi slt, %j, %27 : index
            %49 = arith.select %48, %weight, %cst_8 : f32
            %50 = arith.truncf %49 : f32 to f16
            "warp.yield"(%50, %49) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
          }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
          %37 = "warp.reduce"(%36#1) {kind = "sum"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %38 = "warp.map"() ({
          ^bb0(%i: index):
            %extracted = tensor.extract %35#2[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %extracted_14 = tensor.extract %37[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %sum_new = arith.addf %extracted, %extracted_14 : f32
            "warp.yield"(%sum_new) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %39 = arith.addi %18, %c128 : index
          %40:7 = scf.for %arg10 = %39 to %15 step %c128 iter_args(%arg11 = %35#0, %arg12 = %38, %arg13 = %20#2, %k_count_14 = %28, %v_count_15 = %20#4, %arg16 = %35#1, %arg17 = %36#0) -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>) {
            %45 = arith.subi %15, %arg10 : index
            %46 = arith.minsi %45, %c128 : index
            %k_stage_16:2 = "warp.stage"(%k_count_14) {stages = 3 : i64} : (index) -> (index, index)
            %k_tile_17 = "warp.view"(%k_buffer, %k_stage_16#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
            "warp.wait"(%k_full, %k_stage_16#0, %k_stage_16#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
            %47 = arith.addi %k_count_14, %c1 : index
            %48 = "warp.registers"() : () -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            "warp.mma_begin"() : () -> ()
            %49 = "warp.mma_async"(%48, %29, %k_tile_17, %false) {transpose_a = false, transpose_b = true} : (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>
            "warp.mma_commit"() : () -> ()
            %v_stage_18:2 = "warp.stage"(%v_count_15) {stages = 3 : i64} : (index) -> (index, index)
            %v_tile_19 = "warp.view"(%v_buffer, %v_stage_18#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
            "warp.wait"(%v_full, %v_stage_18#0, %v_stage_18#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
            %50 = arith.addi %v_count_15, %c1 : index
            %51 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %arg13[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
              %extracted_20 = tensor.extract %arg16[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %61 = arith.mulf %extracted, %extracted_20 : f32
              "warp.yield"(%61) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            "warp.mma_begin"() : () -> ()
            %52 = "warp.mma_async"(%51, %arg17, %v_tile_19, %true) {transpose_a = false, transpose_b = false} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
            "warp.mma_commit"() : () -> ()
            %53 = "warp.mma_wait"(%49) {pending = 1 : i64} : (!warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            "warp.arrive"(%k_free, %k_stage_16#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
            %54:2 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %61 = arith.addi %first_row, %i : index
              %62 = arith.addi %7, %61 : index
              %63 = arith.minsi %62, %1 : index
              %extracted = tensor.extract %53[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              %64 = arith.addi %arg10, %j : index
              %65 = arith.cmpi sge, %63, %64 : index
              %66 = arith.select %65, %extracted, %cst_6 : f32
              %67 = arith.cmpi slt, %j, %46 : index
              %68 = arith.select %67, %66, %cst_9 : f32
              "warp.yield"(%66, %68) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
            }) {reductions = ["", "max"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
            %55 = "warp.reduce"(%54#1) {kind = "max"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %56:3 = "warp.map"() ({
            ^bb0(%i: index):
              %extracted = tensor.extract %arg11[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %extracted_20 = tensor.extract %55[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %61 = arith.mulf %extracted_20, %cst_7 : f32
              %62 = arith.cmpf oeq, %extracted_20, %cst_9 : f32
              %63 = arith.select %62, %cst_9, %61 : f32
              %max_new = arith.maximumf %extracted, %63 {gpu.free} : f32
              %64 = arith.subf %max_new, %extracted : f32
              %65 = arith.cmpf ole, %64, %cst_5 : f32
              %max_new_21 = arith.select %65, %extracted, %max_new : f32
              %66 = arith.subf %extracted, %max_new_21 : f32
              %67 = arith.mulf %66, %cst_4 : f32
              %rescale = math.exp2 %67 : f32
              %extracted_22 = tensor.extract %arg12[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %68 = arith.mulf %extracted_22, %rescale : f32
              "warp.yield"(%max_new_21, %rescale, %68) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
            }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
            %57 = "warp.mma_wait"(%52) {pending = 0 : i64} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            "warp.arrive"(%v_free, %v_stage_18#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
            %58:2 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %54#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              %extracted_20 = tensor.extract %56#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %61 = arith.mulf %extracted_20, %cst_2 : f32
              %62 = arith.minimumf %61, %cst_1 : f32
              %63 = math.fma %extracted, %cst_3, %62 : f32
              %weight = math.exp2 %63 : f32
              %64 = arith.cmpi slt, %j, %46 : index
              %65 = arith.select %64, %weight, %cst_8 : f32
              %66 = arith.truncf %65 : f32 to f16
              "warp.yield"(%66, %65) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
            }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
            %59 = "warp.reduce"(%58#1) {kind = "sum"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %60 = "warp.map"() ({
            ^bb0(%i: index):
              %extracted = tensor.extract %56#2[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %extracted_20 = tensor.extract %59[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %sum_new = arith.addf %extracted, %extracted_20 : f32
              "warp.yield"(%sum_new) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            scf.yield %56#0, %60, %57, %47, %50, %56#1, %58#0 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>
          }
          %v_stage:2 = "warp.stage"(%40#4) {stages = 3 : i64} : (index) -> (index, index)
          %v_tile = "warp.view"(%v_buffer, %v_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          "warp.wait"(%v_full, %v_stage#0, %v_stage#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
          %41 = arith.addi %40#4, %c1 : index
          %42 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %extracted = tensor.extract %40#2[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            %extracted_14 = tensor.extract %40#5[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %45 = arith.mulf %extracted, %extracted_14 : f32
            "warp.yield"(%45) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          "warp.mma_begin"() : () -> ()
          %43 = "warp.mma_async"(%42, %40#6, %v_tile, %true) {transpose_a = false, transpose_b = false} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
          "warp.mma_commit"() : () -> ()
          %44 = "warp.mma_wait"(%43) {pending = 0 : i64} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          "warp.arrive"(%v_free, %v_stage#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
          scf.yield %40#0, %40#1, %44, %40#3, %41 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index
        } else {
          scf.yield %20#0, %20#1, %20#2, %20#3, %20#4 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index
        }
        "warp.arrive"(%q_free, %q_stage#0) : (!warp.barrier<1 : i64, 12 : i64>, index) -> ()
        %23 = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          %extracted = tensor.extract %22#2[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          %extracted_14 = tensor.extract %22#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %26 = arith.divf %cst_0, %extracted_14 : f32
          %27 = arith.mulf %extracted, %26 : f32
          %28 = arith.truncf %27 : f32 to f16
          "warp.yield"(%28) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f16) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
        %24 = arith.addi %7, %first_row : index
        "warp.store"(%23, %o, %batch, %head, %24) : (tensor<64x64xf16, #warp.layout<"wgmma", "tile">>, memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index) -> ()
        %25 = "warp.map"() ({
        ^bb0(%i: index):
          %extracted = tensor.extract %22#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %extracted_14 = tensor.extract %22#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %26 = math.log2 %extracted_14 : f32
          %27 = arith.mulf %26, %cst : f32
          %28 = arith.addf %extracted, %27 : f32
          "warp.yield"(%28) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
        "warp.store"(%25, %lse, %batch, %head, %24) : (tensor<64xf32, #warp.layout<"wgmma", "rows">>, memref<?x?x?xf32, strided<[?, ?, ?]>>, index, index, index) -> ()
        scf.yield %10, %22#3, %22#4 : index, index, index
      }
    }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 3 : i64, warps = 4 : i64} : () -> ()
  }) {function = "attention", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64, sym_name = "attention", warp.schedule = {align = "end", arch = "sm_90a", consumer_registers = 160 : i64, dropout = "own", emitter = "hopper", flow = "flat", group = 16 : i64, optimistic = 1 : i64, order = "dynamic", partial = "block", pin = 0 : i64, producer_registers = 32 : i64, queries = "shared", reverse = 1 : i64, skip = 0 : i64, stages = 3 : i64, staging = "query", sums = "product", turns = 1 : i64, vote = 1 : i64}} : () -> ()
}
