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
    %dim_10 = memref.dim %q, %c2 : memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
    %dim_11 = memref.dim %q, %c1 : memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
    %dim_12 = memref.dim %k, %c1 : memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
    %0 = arith.divsi %dim_11, %dim_12 : index
    %1 = arith.subi %dim_10, %c1 : index
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
    %2 = arith.muli %dim_13, %dim_11 : index
    %blocks = arith.ceildivsi %dim_10, %c192 : index
    %tiles = arith.muli %2, %blocks : index
    "warp.role"() ({
    ^bb0(%warpgroup: index):
      %3 = "warp.block_id"() : () -> index
      %4 = "warp.block_count"() : () -> index
      %5:3 = scf.for %tile = %3 to %tiles step %4 iter_args(%q_count = %c0, %k_count = %c0, %v_count = %c0) -> (index, index, index) {
        %6 = arith.divsi %tile, %blocks : index
        %block = arith.remsi %tile, %blocks : index
        %head = arith.remsi %6, %dim_11 : index
        %batch = arith.divsi %6, %dim_11 : index
        %7 = arith.muli %block, %c192 : index
        %8 = arith.addi %7, %c192 : index
        %9 = arith.minsi %8, %dim_10 : index
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
        %head = arith.remsi %6, %dim_11 : index
        %batch = arith.divsi %6, %dim_11 : index
        %7 = arith.muli %block, %c192 : index
        %8 = arith.addi %7, %c192 : index
        %9 = arith.minsi %8, %dim_10 : index
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
        %19:5 = scf.for %arg10 = %c0 to %18 step %c128 iter_args(%arg11 = %11#0, %arg12 = %11#1, %arg13 = %12, %k_count_14 = %k_count, %v_count_15 = %v_count) -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index) {
          %k_stage:2 = "warp.stage"(%k_count_14) {stages = 3 : i64} : (index) -> (index, index)
          %k_tile = "warp.view"(%k_buffer, %k_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          "warp.wait"(%k_full, %k_stage#0, %k_stage#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
          %24 = arith.addi %k_count_14, %c1 : index
          %25 = "warp.view"(%q_buffer, %q_stage#0, %first_row, %c0) : (memref<1x192x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<64x64xf16, #warp.shared<128 : i64>>
          %26 = "warp.registers"() : () -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
          "warp.mma_begin"() : () -> ()
          %27 = "warp.mma_async"(%26, %25, %k_tile, %false) {transpose_a = false, transpose_b = true} : (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>
          "warp.mma_commit"() : () -> ()
          %28 = "warp.mma_wait"(%27) {pending = 0 : i64} : (!warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
          "warp.arrive"(%k_free, %k_stage#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
          %29 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %extracted = tensor.extract %28[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            "warp.yield"(%extracted) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 128>} : () -> tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
          %30 = "warp.reduce"(%29) {kind = "max"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %31:3 = "warp.map"() ({
          ^bb0(%i: index):
            %extracted = tensor.extract %arg11[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %extracted_16 = tensor.extract %30[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %39 = arith.mulf %extracted_16, %cst_7 : f32
            %max_new = arith.maximumf %extracted, %39 {gpu.free} : f32
            %40 = arith.subf %max_new, %extracted : f32
            %41 = arith.cmpf ole, %40, %cst_5 : f32
            %max_new_17 = arith.select %41, %extracted, %max_new : f32
            %42 = arith.subf %extracted, %max_new_17 : f32
            %43 = arith.mulf %42, %cst_4 : f32
            %rescale = math.exp2 %43 : f32
            %extracted_18 = tensor.extract %arg12[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %44 = arith.mulf %extracted_18, %rescale : f32
            "warp.yield"(%max_new_17, %rescale, %44) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
          }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
          %32:2 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %extracted = tensor.extract %28[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            %extracted_16 = tensor.extract %31#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %39 = arith.mulf %extracted_16, %cst_2 : f32
            %40 = arith.minimumf %39, %cst_1 : f32
            %41 = math.fma %extracted, %cst_3, %40 : f32
            %weight = math.exp2 %41 : f32
            %42 = arith.truncf %weight : f32 to f16
            "warp.yield"(%42, %weight) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
          }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
          %33 = "warp.reduce"(%32#1) {kind = "sum"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %34 = "warp.map"() ({
          ^bb0(%i: index):
            %extracted = tensor.extract %31#2[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %extracted_16 = tensor.extract %33[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %sum_new = arith.addf %extracted, %extracted_16 : f32
            "warp.yield"(%sum_new) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %v_stage:2 = "warp.stage"(%v_count_15) {stages = 3 : i64} : (index) -> (index, index)
          %v_tile = "warp.view"(%v_buffer, %v_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          "warp.wait"(%v_full, %v_stage#0, %v_stage#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
          %35 = arith.addi %v_count_15, %c1 : index
          %36 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %extracted = tensor.extract %arg13[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            %extracted_16 = tensor.extract %31#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %39 = arith.mulf %extracted, %extracted_16 : f32
            "warp.yield"(%39) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          "warp.mma_begin"() : () -> ()
          %37 = "warp.mma_async"(%36, %32#0, %v_tile, %true) {transpose_a = false, transpose_b = false} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
          "warp.mma_commit"() : () -> ()
          %38 = "warp.mma_wait"(%37) {pending = 0 : i64} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          "warp.arrive"(%v_free, %v_stage#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
          scf.yield %31#0, %34, %38, %24, %35 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index
        }
        %20:5 = scf.for %arg10 = %18 to %15 step %c128 iter_args(%arg11 = %19#0, %arg12 = %19#1, %arg13 = %19#2, %k_count_14 = %19#3, %v_count_15 = %19#4) -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index) {
          %24 = arith.subi %15, %arg10 : index
          %25 = arith.minsi %24, %c128 : index
          %k_stage:2 = "warp.stage"(%k_count_14) {stages = 3 : i64} : (index) -> (index, index)
          %k_tile = "warp.view"(%k_buffer, %k_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          "warp.wait"(%k_full, %k_stage#0, %k_stage#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
          %26 = arith.addi %k_count_14, %c1 : index
          %27 = "warp.view"(%q_buffer, %q_stage#0, %first_row, %c0) : (memref<1x192x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<64x64xf16, #warp.shared<128 : i64>>
          %28 = "warp.registers"() : () -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
          "warp.mma_begin"() : () -> ()
          %29 = "warp.mma_async"(%28, %27, %k_tile, %false) {transpose_a = false, transpose_b = true} : (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>
          "warp.mma_commit"() : () -> ()
          %30 = "warp.mma_wait"(%29) {pending = 0 : i64} : (!warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
          "warp.arrive"(%k_free, %k_stage#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
          %31:2 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %41 = arith.addi %first_row, %i : index
            %42 = arith.addi %7, %41 : index
            %43 = arith.minsi %42, %1 : index
            %extracted = tensor.extract %30[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            %44 = arith.addi %arg10, %j : index
            %45 = arith.cmpi sge, %43, %44 : index
            %46 = arith.select %45, %extracted, %cst_6 : f32
            %47 = arith.cmpi slt, %j, %25 : index
            %48 = arith.select %47, %46, %cst_9 : f32
            "warp.yield"(%46, %48) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
          }) {reductions = ["", "max"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
          %32 = "warp.reduce"(%31#1) {kind = "max"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %33:3 = "warp.map"() ({
          ^bb0(%i: index):
            %extracted = tensor.extract %arg11[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %extracted_16 = tensor.extract %32[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %41 = arith.mulf %extracted_16, %cst_7 : f32
            %42 = arith.cmpf oeq, %extracted_16, %cst_9 : f32
            %43 = arith.select %42, %cst_9, %41 : f32
            %max_new = arith.maximumf %extracted, %43 {gpu.free} : f32
            %44 = arith.subf %max_new, %extracted : f32
            %45 = arith.cmpf ole, %44, %cst_5 : f32
            %max_new_17 = arith.select %45, %extracted, %max_new : f32
            %46 = arith.subf %extracted, %max_new_17 : f32
            %47 = arith.mulf %46, %cst_4 : f32
            %rescale = math.exp2 %47 : f32
            %extracted_18 = tensor.extract %arg12[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %48 = arith.mulf %extracted_18, %rescale : f32
            "warp.yield"(%max_new_17, %rescale, %48) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
          }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
          %34:2 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %extracted = tensor.extract %31#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            %extracted_16 = tensor.extract %33#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %41 = arith.mulf %extracted_16, %cst_2 : f32
            %42 = arith.minimumf %41, %cst_1 : f32
            %43 = math.fma %extracted, %cst_3, %42 : f32
            %weight = math.exp2 %43 : f32
            %44 = arith.cmpi slt, %j, %25 : index
            %45 = arith.select %44, %weight, %cst_8 : f32
            %46 = arith.truncf %45 : f32 to f16
            "warp.yield"(%46, %45) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
          }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
          %35 = "warp.reduce"(%34#1) {kind = "sum"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %36 = "warp.map"() ({
          ^bb0(%i: index):
            %extracted = tensor.extract %33#2[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %extracted_16 = tensor.extract %35[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %sum_new = arith.addf %extracted, %extracted_16 : f32
            "warp.yield"(%sum_new) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %v_stage:2 = "warp.stage"(%v_count_15) {stages = 3 : i64} : (index) -> (index, index)
          %v_tile = "warp.view"(%v_buffer, %v_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          "warp.wait"(%v_full, %v_stage#0, %v_stage#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
          %37 = arith.addi %v_count_15, %c1 : index
          %38 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %extracted = tensor.extract %arg13[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            %extracted_16 = tensor.extract %33#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %41 = arith.mulf %extracted, %extracted_16 : f32
            "warp.yield"(%41) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          "warp.mma_begin"() : () -> ()
          %39 = "warp.mma_async"(%38, %34#0, %v_tile, %true) {transpose_a = false, transpose_b = false} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
          "warp.mma_commit"() : () -> ()
          %40 = "warp.mma_wait"(%39) {pending = 0 : i64} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          "warp.arrive"(%v_free, %v_stage#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
          scf.yield %33#0, %36, %40, %26, %37 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index
        }
        "warp.arrive"(%q_free, %q_stage#0) : (!warp.barrier<1 : i64, 12 : i64>, index) -> ()
        %21 = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          %extracted = tensor.extract %20#2[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          %extracted_14 = tensor.extract %20#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %24 = arith.divf %cst_0, %extracted_14 : f32
          %25 = arith.mulf %extracted, %24 : f32
          %26 = arith.truncf %25 : f32 to f16
          "warp.yield"(%26) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f16) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
        %22 = arith.addi %7, %first_row : index
        "warp.store"(%21, %o, %batch, %head, %22) : (tensor<64x64xf16, #warp.layout<"wgmma", "tile">>, memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index) -> ()
        %23 = "warp.map"() ({
        ^bb0(%i: index):
          %extracted = tensor.extract %20#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %extracted_14 = tensor.extract %20#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %24 = math.log2 %extracted_14 : f32
          %25 = arith.mulf %24, %cst : f32
          %26 = arith.addf %extracted, %25 : f32
          "warp.yield"(%26) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
        "warp.store"(%23, %lse, %batch, %head, %22) : (tensor<64xf32, #warp.layout<"wgmma", "rows">>, memref<?x?x?xf32, strided<[?, ?, ?]>>, index, index, index) -> ()
        scf.yield %10, %20#3, %20#4 : index, index, index
      }
    }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 3 : i64, warps = 4 : i64} : () -> ()
  }) {function = "attention", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64, sym_name = "attention", warp.schedule = {align = "end", arch = "sm_90a", consumer_registers = 160 : i64, emitter = "hopper", flow = "flat", group = 16 : i64, optimistic = 1 : i64, order = "dynamic", partial = "block", pin = 0 : i64, producer_registers = 32 : i64, queries = "shared", reverse = 1 : i64, skip = 0 : i64, stages = 3 : i64, staging = "query", sums = "product", turns = 1 : i64, vote = 1 : i64}} : () -> ()
}
