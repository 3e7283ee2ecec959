// Causal softmax attention in f16, head dimension 64, as the passes of schedule.md leave it; test/unit/schedule_listing.py made it.
module {
  "warp.kernel"() ({
  ^bb0(%q: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %k: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %v: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %o: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %lse: memref<?x?x?xf32, strided<[?, ?, ?]>>):
    %c3 = arith.constant 3 : index
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
        %19 = arith.maxsi %18, %c0 : index
        %20 = arith.ceildivsi %19, %c128 : index
        %21 = arith.subi %15, %18 : index
        %22 = arith.maxsi %21, %c0 : index
        %23 = arith.ceildivsi %22, %c128 : index
        %24 = arith.addi %20, %23 : index
        %25:2 = scf.for %arg10 = %c0 to %24 step %c1 iter_args(%k_count_14 = %k_count, %v_count_15 = %v_count) -> (index, index) {
          %26 = arith.cmpi slt, %arg10, %20 : index
          %27 = arith.muli %arg10, %c128 : index
          %28 = arith.subi %arg10, %20 : index
          %29 = arith.muli %28, %c128 : index
          %30 = arith.addi %18, %29 : index
          %31 = arith.select %26, %27, %30 : index
          %k_stage:2 = "warp.stage"(%k_count_14) {stages = 3 : i64} : (index) -> (index, index)
          %k_tile = "warp.view"(%k_buffer, %k_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          %32 = arith.xori %k_stage#1, %c1 : index
          "warp.wait"(%k_free, %k_stage#0, %32) : (!warp.barrier<3 : i64, 12 : i64>, index, index) -> ()
          "warp.elect"() ({
            "warp.arrive_expect"(%k_full, %k_stage#0) {bytes = 16384 : i64} : (!warp.barrier<3 : i64, 1 : i64>, index) -> ()
            "warp.copy_async"(%k, %batch, %10, %31, %c0, %k_tile, %k_full, %k_stage#0) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index, memref<128x64xf16, #warp.shared<128 : i64>>, !warp.barrier<3 : i64, 1 : i64>, index) -> ()
          }) : () -> ()
          %33 = arith.addi %k_count_14, %c1 : index
          %v_stage:2 = "warp.stage"(%v_count_15) {stages = 3 : i64} : (index) -> (index, index)
          %v_tile = "warp.view"(%v_buffer, %v_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          %34 = arith.xori %v_stage#1, %c1 : index
          "warp.wait"(%v_free, %v_stage#0, %34) : (!warp.barrier<3 : i64, 12 : i64>, index, index) -> ()
          "warp.elect"() ({
            "warp.arrive_expect"(%v_full, %v_stage#0) {bytes = 16384 : i64} : (!warp.barrier<3 : i64, 1 : i64>, index) -> ()
            "warp.copy_async"(%v, %batch, %10, %31, %c0, %v_tile, %v_full, %v_stage#0) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index, memref<128x64xf16, #warp.shared<128 : i64>>, !warp.barrier<3 : i64, 1 : i64>, index) -> ()
          }) : () -> ()
          %35 = arith.addi %v_count_15, %c1 : index
          scf.yield %33, %35 : index, index
        }
        scf.yield %12, %25#0, %25#1 : index, index, index
      }
    }) {registers = 32 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64} : () -> ()
    "warp.role"() ({
    ^bb0(%warpgroup: index):
      %3 = arith.cmpi eq, %warpgroup, %c2 : index
      scf.if %3 {
        "warp.named_arrive"(%c1) {threads = 256 : i64} : (index) -> ()
      }
      %first_row = arith.muli %warpgroup, %c64 : index
      %4 = "warp.block_id"() : () -> index
      %5 = "warp.block_count"() : () -> index
      %6:3 = scf.for %tile = %4 to %tiles step %5 iter_args(%q_count = %c0, %k_count = %c0, %v_count = %c0) -> (index, index, index) {
        %7 = arith.divsi %tile, %blocks : index
        %block = arith.remsi %tile, %blocks : index
        %head = arith.remsi %7, %dim_10 : index
        %batch = arith.divsi %7, %dim_10 : index
        %8 = arith.muli %block, %c192 : index
        %9 = arith.addi %8, %c192 : index
        %10 = arith.minsi %9, %dim_12 : index
        %q_stage:2 = "warp.stage"(%q_count) {stages = 1 : i64} : (index) -> (index, index)
        "warp.wait"(%q_full, %q_stage#0, %q_stage#1) : (!warp.barrier<1 : i64, 1 : i64>, index, index) -> ()
        %11 = arith.addi %q_count, %c1 : index
        %12:2 = "warp.map"() ({
        ^bb0(%i: index):
          "warp.yield"(%cst_9, %cst_8) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
        }) {reductions = ["", ""], resultSegmentSizes = array<i32: 2, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
        %13 = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          "warp.yield"(%cst_8) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
        %14 = arith.addi %8, %c1 : index
        %15 = arith.minsi %14, %dim : index
        %16 = arith.minsi %10, %dim : index
        %17 = arith.divsi %15, %c128 : index
        %18 = arith.muli %17, %c128 : index
        %19 = arith.maxsi %18, %c0 : index
        %20 = arith.maxsi %19, %c0 : index
        %21 = arith.ceildivsi %20, %c128 : index
        %22 = arith.subi %16, %19 : index
        %23 = arith.maxsi %22, %c0 : index
        %24 = arith.ceildivsi %23, %c128 : index
        %25 = arith.addi %21, %24 : index
        %26 = arith.cmpi sgt, %25, %c0 : index
        %27:5 = scf.if %26 -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index) {
          %31 = arith.cmpi sgt, %21, %c0 : index
          %32 = arith.subi %c0, %21 : index
          %33 = arith.muli %32, %c128 : index
          %34 = arith.addi %19, %33 : index
          %35 = arith.select %31, %c0, %34 : index
          %36 = arith.subi %16, %35 : index
          %37 = arith.minsi %36, %c128 : index
          %k_stage:2 = "warp.stage"(%k_count) {stages = 3 : i64} : (index) -> (index, index)
          %k_tile = "warp.view"(%k_buffer, %k_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          "warp.wait"(%k_full, %k_stage#0, %k_stage#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
          %38 = arith.addi %k_count, %c1 : index
          %39 = "warp.view"(%q_buffer, %q_stage#0, %first_row, %c0) : (memref<1x192x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<64x64xf16, #warp.shared<128 : i64>>
          %40 = "warp.registers"() : () -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
          "warp.mma_begin"() : () -> ()
          %41 = "warp.mma_async"(%40, %39, %k_tile, %false) {transpose_a = false, transpose_b = true} : (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>
          "warp.mma_commit"() : () -> ()
          %42 = "warp.mma_wait"(%41) {pending = 0 : i64} : (!warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
          "warp.arrive"(%k_free, %k_stage#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
          %43 = arith.cmpi sle, %21, %c0 : index
          %44:2 = scf.if %43 -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) {
            %54:2 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %55 = arith.addi %first_row, %i : index
              %56 = arith.addi %8, %55 : index
              %57 = arith.minsi %56, %1 : index
              %extracted = tensor.extract %42[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              %58 = arith.addi %35, %j : index
              %59 = arith.cmpi sge, %57, %58 : index
              %60 = arith.select %59, %extracted, %cst_6 : f32
              %61 = arith.cmpi slt, %j, %37 : index
              %62 = arith.select %61, %60, %cst_9 : f32
              "warp.yield"(%60, %62) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
            }) {reductions = ["", "max"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
            scf.yield %54#0, %54#1 : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
          } else {
            %54 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %42[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              "warp.yield"(%extracted) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 128>} : () -> tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            scf.yield %42, %54 : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
          }
          %45 = "warp.reduce"(%44#1) {kind = "max"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %46:5 = scf.if %31 -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) {
            %54:3 = "warp.map"() ({
            ^bb0(%i: index):
              %extracted = tensor.extract %12#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %extracted_14 = tensor.extract %45[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %56 = arith.mulf %extracted_14, %cst_7 : f32
              %max_new = arith.maximumf %extracted, %56 {gpu.free} : f32
              %57 = arith.subf %max_new, %extracted : f32
              %58 = arith.cmpf ole, %57, %cst_5 : f32
              %max_new_15 = arith.select %58, %extracted, %max_new : f32
              %59 = arith.subf %extracted, %max_new_15 : f32
              %60 = arith.mulf %59, %cst_4 : f32
              %rescale = math.exp2 %60 : f32
              %extracted_16 = tensor.extract %12#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %61 = arith.mulf %extracted_16, %rescale : f32
              "warp.yield"(%max_new_15, %rescale, %61) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
            }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
            %55:2 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %44#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              %extracted_14 = tensor.extract %54#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %56 = arith.mulf %extracted_14, %cst_2 : f32
              %57 = arith.minimumf %56, %cst_1 : f32
              %58 = math.fma %extracted, %cst_3, %57 : f32
              %weight = math.exp2 %58 : f32
              %59 = arith.truncf %weight : f32 to f16
              "warp.yield"(%59, %weight) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
            }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
            scf.yield %54#0, %54#1, %54#2, %55#0, %55#1 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
          } else {
            %54:3 = "warp.map"() ({
            ^bb0(%i: index):
              %extracted = tensor.extract %12#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %extracted_14 = tensor.extract %45[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %56 = arith.mulf %extracted_14, %cst_7 : f32
              %57 = arith.cmpf oeq, %extracted_14, %cst_9 : f32
              %58 = arith.select %57, %cst_9, %56 : f32
              %max_new = arith.maximumf %extracted, %58 {gpu.free} : f32
              %59 = arith.subf %max_new, %extracted : f32
              %60 = arith.cmpf ole, %59, %cst_5 : f32
              %max_new_15 = arith.select %60, %extracted, %max_new : f32
              %61 = arith.subf %extracted, %max_new_15 : f32
              %62 = arith.mulf %61, %cst_4 : f32
              %rescale = math.exp2 %62 : f32
              %extracted_16 = tensor.extract %12#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %63 = arith.mulf %extracted_16, %rescale : f32
              "warp.yield"(%max_new_15, %rescale, %63) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
            }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
            %55:2 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %44#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              %extracted_14 = tensor.extract %54#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %56 = arith.mulf %extracted_14, %cst_2 : f32
              %57 = arith.minimumf %56, %cst_1 : f32
              %58 = math.fma %extracted, %cst_3, %57 : f32
              %weight = math.exp2 %58 : f32
              %59 = arith.cmpi slt, %j, %37 : index
              %60 = arith.select %59, %weight, %cst_8 : f32
              %61 = arith.truncf %60 : f32 to f16
              "warp.yield"(%61, %60) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
            }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
            scf.yield %54#0, %54#1, %54#2, %55#0, %55#1 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
          }
          %47 = "warp.reduce"(%46#4) {kind = "sum"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %48 = "warp.map"() ({
          ^bb0(%i: index):
            %extracted = tensor.extract %46#2[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %extracted_14 = tensor.extract %47[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %sum_new = arith.addf %extracted, %extracted_14 : f32
            "warp.yield"(%sum_new) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %49:7 = scf.for %arg10 = %c1 to %25 step %c1 iter_args(%arg11 = %46#0, %arg12 = %48, %arg13 = %13, %k_count_14 = %38, %v_count_15 = %v_count, %arg16 = %46#1, %arg17 = %46#3) -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>) {
            %54 = arith.cmpi slt, %arg10, %21 : index
            %55 = arith.muli %arg10, %c128 : index
            %56 = arith.subi %arg10, %21 : index
            %57 = arith.muli %56, %c128 : index
            %58 = arith.addi %19, %57 : index
            %59 = arith.select %54, %55, %58 : index
            %60 = arith.subi %16, %59 : index
            %61 = arith.minsi %60, %c128 : index
            %k_stage_16:2 = "warp.stage"(%k_count_14) {stages = 3 : i64} : (index) -> (index, index)
            %k_tile_17 = "warp.view"(%k_buffer, %k_stage_16#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
            "warp.wait"(%k_full, %k_stage_16#0, %k_stage_16#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
            %62 = arith.addi %k_count_14, %c1 : index
            %63 = "warp.registers"() : () -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            %64 = arith.addi %warpgroup, %c1 : index
            "warp.named_sync"(%64) {threads = 256 : i64} : (index) -> ()
            "warp.mma_begin"() : () -> ()
            %65 = "warp.mma_async"(%63, %39, %k_tile_17, %false) {transpose_a = false, transpose_b = true} : (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>
            "warp.mma_commit"() : () -> ()
            %v_stage_18:2 = "warp.stage"(%v_count_15) {stages = 3 : i64} : (index) -> (index, index)
            %v_tile_19 = "warp.view"(%v_buffer, %v_stage_18#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
            "warp.wait"(%v_full, %v_stage_18#0, %v_stage_18#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
            %66 = arith.addi %v_count_15, %c1 : index
            %67 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %arg13[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
              %extracted_20 = tensor.extract %arg16[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %79 = arith.mulf %extracted, %extracted_20 : f32
              "warp.yield"(%79) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            "warp.mma_begin"() : () -> ()
            %68 = "warp.mma_async"(%67, %arg17, %v_tile_19, %true) {transpose_a = false, transpose_b = false} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
            "warp.mma_commit"() : () -> ()
            %69 = arith.remui %64, %c3 : index
            %70 = arith.addi %69, %c1 : index
            "warp.named_arrive"(%70) {threads = 256 : i64} : (index) -> ()
            %71 = "warp.mma_wait"(%65) {pending = 1 : i64} : (!warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            "warp.arrive"(%k_free, %k_stage_16#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
            %72 = arith.cmpi sge, %arg10, %21 : index
            %73:2 = scf.if %72 -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) {
              %79:2 = "warp.map"() ({
              ^bb0(%i: index, %j: index):
                %80 = arith.addi %first_row, %i : index
                %81 = arith.addi %8, %80 : index
                %82 = arith.minsi %81, %1 : index
                %extracted = tensor.extract %71[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
                %83 = arith.addi %59, %j : index
                %84 = arith.cmpi sge, %82, %83 : index
                %85 = arith.select %84, %extracted, %cst_6 : f32
                %86 = arith.cmpi slt, %j, %61 : index
                %87 = arith.select %86, %85, %cst_9 : f32
                "warp.yield"(%85, %87) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
              }) {reductions = ["", "max"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
              scf.yield %79#0, %79#1 : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            } else {
              %79 = "warp.map"() ({
              ^bb0(%i: index, %j: index):
                %extracted = tensor.extract %71[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
                "warp.yield"(%extracted) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
              }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 128>} : () -> tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
              scf.yield %71, %79 : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            }
            %74 = "warp.reduce"(%73#1) {kind = "max"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %75 = "warp.mma_wait"(%68) {pending = 0 : i64} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            "warp.arrive"(%v_free, %v_stage_18#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
            %76:5 = scf.if %54 -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) {
              %79:3 = "warp.map"() ({
              ^bb0(%i: index):
                %extracted = tensor.extract %arg11[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %extracted_20 = tensor.extract %74[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %81 = arith.mulf %extracted_20, %cst_7 : f32
                %max_new = arith.maximumf %extracted, %81 {gpu.free} : f32
                %82 = arith.subf %max_new, %extracted : f32
                %83 = arith.cmpf ole, %82, %cst_5 : f32
                %max_new_21 = arith.select %83, %extracted, %max_new : f32
                %84 = arith.subf %extracted, %max_new_21 : f32
                %85 = arith.mulf %84, %cst_4 : f32
                %rescale = math.exp2 %85 : f32
                %extracted_22 = tensor.extract %arg12[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %86 = arith.mulf %extracted_22, %rescale : f32
                "warp.yield"(%max_new_21, %rescale, %86) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
              }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
              %80:2 = "warp.map"() ({
              ^bb0(%i: index, %j: index):
                %extracted = tensor.extract %73#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
                %extracted_20 = tensor.extract %79#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %81 = arith.mulf %extracted_20, %cst_2 : f32
                %82 = arith.minimumf %81, %cst_1 : f32
                %83 = math.fma %extracted, %cst_3, %82 : f32
                %weight = math.exp2 %83 : f32
                %84 = arith.truncf %weight : f32 to f16
                "warp.yield"(%84, %weight) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
              }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
              scf.yield %79#0, %79#1, %79#2, %80#0, %80#1 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            } else {
              %79:3 = "warp.map"() ({
              ^bb0(%i: index):
                %extracted = tensor.extract %arg11[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %extracted_20 = tensor.extract %74[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %81 = arith.mulf %extracted_20, %cst_7 : f32
                %82 = arith.cmpf oeq, %extracted_20, %cst_9 : f32
                %83 = arith.select %82, %cst_9, %81 : f32
                %max_new = arith.maximumf %extracted, %83 {gpu.free} : f32
                %84 = arith.subf %max_new, %extracted : f32
                %85 = arith.cmpf ole, %84, %cst_5 : f32
                %max_new_21 = arith.select %85, %extracted, %max_new : f32
                %86 = arith.subf %extracted, %max_new_21 : f32
                %87 = arith.mulf %86, %cst_4 : f32
                %rescale = math.exp2 %87 : f32
                %extracted_22 = tensor.extract %arg12[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %88 = arith.mulf %extracted_22, %rescale : f32
                "warp.yield"(%max_new_21, %rescale, %88) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
              }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
              %80:2 = "warp.map"() ({
              ^bb0(%i: index, %j: index):
                %extracted = tensor.extract %73#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
                %extracted_20 = tensor.extract %79#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %81 = arith.mulf %extracted_20, %cst_2 : f32
                %82 = arith.minimumf %81, %cst_1 : f32
                %83 = math.fma %extracted, %cst_3, %82 : f32
                %weight = math.exp2 %83 : f32
                %84 = arith.cmpi slt, %j, %61 : index
                %85 = arith.select %84, %weight, %cst_8 : f32
                %86 = arith.truncf %85 : f32 to f16
                "warp.yield"(%86, %85) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
              }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
              scf.yield %79#0, %79#1, %79#2, %80#0, %80#1 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            }
            %77 = "warp.reduce"(%76#4) {kind = "sum"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %78 = "warp.map"() ({
            ^bb0(%i: index):
              %extracted = tensor.extract %76#2[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %extracted_20 = tensor.extract %77[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %sum_new = arith.addf %extracted, %extracted_20 : f32
              "warp.yield"(%sum_new) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            scf.yield %76#0, %78, %75, %62, %66, %76#1, %76#3 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>
          }
          %v_stage:2 = "warp.stage"(%49#4) {stages = 3 : i64} : (index) -> (index, index)
          %v_tile = "warp.view"(%v_buffer, %v_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          "warp.wait"(%v_full, %v_stage#0, %v_stage#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
          %50 = arith.addi %49#4, %c1 : index
          %51 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %extracted = tensor.extract %49#2[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            %extracted_14 = tensor.extract %49#5[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %54 = arith.mulf %extracted, %extracted_14 : f32
            "warp.yield"(%54) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          "warp.mma_begin"() : () -> ()
          %52 = "warp.mma_async"(%51, %49#6, %v_tile, %true) {transpose_a = false, transpose_b = false} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
          "warp.mma_commit"() : () -> ()
          %53 = "warp.mma_wait"(%52) {pending = 0 : i64} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          "warp.arrive"(%v_free, %v_stage#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
          scf.yield %49#0, %49#1, %53, %49#3, %50 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index
        } else {
          scf.yield %12#0, %12#1, %13, %k_count, %v_count : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index
        }
        "warp.arrive"(%q_free, %q_stage#0) : (!warp.barrier<1 : i64, 12 : i64>, index) -> ()
        %28 = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          %extracted = tensor.extract %27#2[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          %extracted_14 = tensor.extract %27#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %31 = arith.divf %cst_0, %extracted_14 : f32
          %32 = arith.mulf %extracted, %31 : f32
          %33 = arith.truncf %32 : f32 to f16
          "warp.yield"(%33) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f16) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
        %29 = arith.addi %8, %first_row : index
        "warp.store"(%28, %o, %batch, %head, %29) : (tensor<64x64xf16, #warp.layout<"wgmma", "tile">>, memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index) -> ()
        %30 = "warp.map"() ({
        ^bb0(%i: index):
          %extracted = tensor.extract %27#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %extracted_14 = tensor.extract %27#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %31 = math.log2 %extracted_14 : f32
          %32 = arith.mulf %31, %cst : f32
          %33 = arith.addf %extracted, %32 : f32
          "warp.yield"(%33) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
        "warp.store"(%30, %lse, %batch, %head, %29) : (tensor<64xf32, #warp.layout<"wgmma", "rows">>, memref<?x?x?xf32, strided<[?, ?, ?]>>, index, index, index) -> ()
        scf.yield %11, %27#3, %27#4 : index, index, index
      }
    }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 3 : i64, warps = 4 : i64} : () -> ()
  }) {function = "attention", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64, sym_name = "attention", warp.schedule = {align = "end", arch = "sm_90a", consumer_registers = 160 : i64, dropout = "own", emitter = "hopper", flow = "flat", group = 16 : i64, optimistic = 1 : i64, order = "dynamic", partial = "block", pin = 0 : i64, producer_registers = 32 : i64, queries = "shared", reverse = 1 : i64, skip = 0 : i64, stages = 3 : i64, staging = "query", sums = "product", turns = 1 : i64, vote = 1 : i64}} : () -> ()
}
