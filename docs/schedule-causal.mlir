// Causal softmax attention in f16, head dimension 64, as the passes of schedule.md leave it; test/unit/schedule_listing.py made it.
module {
  "warp.kernel"() ({
  ^bb0(%q: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %k: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %v: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %o: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %lse: memref<?x?x?xf32, strided<[?, ?, ?]>>):
    %c8 = arith.constant 8 : index
    %c3 = arith.constant 3 : index
    %c16 = arith.constant 16 : index
    %c1073741824 = arith.constant 1073741824 : index
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
      %5 = arith.minsi %tiles, %c1073741824 : index
      %6 = arith.maxsi %5, %c0 : index
      %7:3 = scf.for %tile = %3 to %6 step %4 iter_args(%q_count = %c0, %k_count = %c0, %v_count = %c0) -> (index, index, index) {
        %8 = arith.divui %tile, %4 : index
        %9 = arith.addi %8, %c1 : index
        %10 = arith.muli %9, %4 : index
        %11 = arith.remui %8, %c2 : index
        %12 = arith.cmpi ne, %11, %c0 : index
        %13 = arith.cmpi sle, %10, %6 : index
        %14 = arith.andi %12, %13 : i1
        %15 = arith.muli %8, %4 : index
        %16 = arith.addi %15, %10 : index
        %17 = arith.addi %tile, %c1 : index
        %18 = arith.subi %16, %17 : index
        %19 = arith.select %14, %18, %tile : index
        %20 = arith.minsi %19, %c1073741824 : index
        %21 = arith.maxsi %20, %c0 : index
        %22 = arith.muli %blocks, %c16 : index
        %23 = arith.divui %21, %22 : index
        %24 = arith.muli %23, %c16 : index
        %25 = arith.minsi %24, %c1073741824 : index
        %26 = arith.maxsi %25, %c0 : index
        %27 = arith.remui %21, %22 : index
        %28 = arith.minsi %2, %c1073741824 : index
        %29 = arith.maxsi %28, %c0 : index
        %30 = arith.subi %29, %26 : index
        %31 = arith.minsi %30, %c16 : index
        %32 = arith.maxsi %31, %c1 : index
        %33 = arith.subi %blocks, %c1 : index
        %34 = arith.divui %27, %32 : index
        %35 = arith.minsi %34, %33 : index
        %36 = arith.maxsi %35, %c0 : index
        %block = arith.subi %33, %36 : index
        %37 = arith.remui %27, %32 : index
        %38 = arith.addi %26, %37 : index
        %39 = arith.minsi %38, %c1073741824 : index
        %40 = arith.maxsi %39, %c0 : index
        %head = arith.remsi %40, %dim_10 : index
        %batch = arith.divsi %40, %dim_10 : index
        %41 = arith.muli %block, %c192 : index
        %42 = arith.addi %41, %c192 : index
        %43 = arith.minsi %42, %dim_12 : index
        %44 = arith.divsi %head, %0 : index
        %q_stage:2 = "warp.stage"(%q_count) {stages = 1 : i64} : (index) -> (index, index)
        %q_tile = "warp.view"(%q_buffer, %q_stage#0, %c0, %c0) : (memref<1x192x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<192x64xf16, #warp.shared<128 : i64>>
        %45 = arith.xori %q_stage#1, %c1 : index
        "warp.wait"(%q_free, %q_stage#0, %45) : (!warp.barrier<1 : i64, 12 : i64>, index, index) -> ()
        "warp.elect"() ({
          "warp.arrive_expect"(%q_full, %q_stage#0) {bytes = 24576 : i64} : (!warp.barrier<1 : i64, 1 : i64>, index) -> ()
          "warp.copy_async"(%q, %batch, %head, %41, %c0, %q_tile, %q_full, %q_stage#0) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index, memref<192x64xf16, #warp.shared<128 : i64>>, !warp.barrier<1 : i64, 1 : i64>, index) -> ()
        }) : () -> ()
        %46 = arith.addi %q_count, %c1 : index
        %47 = arith.addi %41, %c1 : index
        %48 = arith.minsi %47, %dim : index
        %49 = arith.minsi %43, %dim : index
        %50 = arith.divsi %48, %c128 : index
        %51 = arith.muli %50, %c128 : index
        %52 = arith.maxsi %51, %c0 : index
        %53 = arith.maxsi %52, %c0 : index
        %54 = arith.ceildivsi %53, %c128 : index
        %55 = arith.subi %49, %52 : index
        %56 = arith.maxsi %55, %c0 : index
        %57 = arith.ceildivsi %56, %c128 : index
        %58 = arith.addi %54, %57 : index
        %59:2 = scf.for %arg10 = %c0 to %58 step %c1 iter_args(%k_count_14 = %k_count, %v_count_15 = %v_count) -> (index, index) {
          %60 = arith.cmpi slt, %arg10, %54 : index
          %61 = arith.muli %arg10, %c128 : index
          %62 = arith.subi %arg10, %54 : index
          %63 = arith.muli %62, %c128 : index
          %64 = arith.addi %52, %63 : index
          %65 = arith.select %60, %61, %64 : index
          %k_stage:2 = "warp.stage"(%k_count_14) {stages = 3 : i64} : (index) -> (index, index)
          %k_tile = "warp.view"(%k_buffer, %k_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          %66 = arith.xori %k_stage#1, %c1 : index
          "warp.wait"(%k_free, %k_stage#0, %66) : (!warp.barrier<3 : i64, 12 : i64>, index, index) -> ()
          "warp.elect"() ({
            "warp.arrive_expect"(%k_full, %k_stage#0) {bytes = 16384 : i64} : (!warp.barrier<3 : i64, 1 : i64>, index) -> ()
            "warp.copy_async"(%k, %batch, %44, %65, %c0, %k_tile, %k_full, %k_stage#0) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index, memref<128x64xf16, #warp.shared<128 : i64>>, !warp.barrier<3 : i64, 1 : i64>, index) -> ()
          }) : () -> ()
          %67 = arith.addi %k_count_14, %c1 : index
          %v_stage:2 = "warp.stage"(%v_count_15) {stages = 3 : i64} : (index) -> (index, index)
          %v_tile = "warp.view"(%v_buffer, %v_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          %68 = arith.xori %v_stage#1, %c1 : index
          "warp.wait"(%v_free, %v_stage#0, %68) : (!warp.barrier<3 : i64, 12 : i64>, index, index) -> ()
          "warp.elect"() ({
            "warp.arrive_expect"(%v_full, %v_stage#0) {bytes = 16384 : i64} : (!warp.barrier<3 : i64, 1 : i64>, index) -> ()
            "warp.copy_async"(%v, %batch, %44, %65, %c0, %v_tile, %v_full, %v_stage#0) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index, memref<128x64xf16, #warp.shared<128 : i64>>, !warp.barrier<3 : i64, 1 : i64>, index) -> ()
          }) : () -> ()
          %69 = arith.addi %v_count_15, %c1 : index
          scf.yield %67, %69 : index, index
        }
        scf.yield %46, %59#0, %59#1 : index, index, index
      }
    }) {registers = 32 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64} : () -> ()
    %o_buffer = "warp.alloc"() : () -> memref<1x192x64xf16, #warp.shared<128 : i64>>
    "warp.role"() ({
    ^bb0(%warpgroup: index):
      %3 = arith.cmpi eq, %warpgroup, %c2 : index
      scf.if %3 {
        "warp.named_arrive"(%c1) {threads = 256 : i64} : (index) -> ()
      }
      %first_row = arith.muli %warpgroup, %c64 : index
      %4 = "warp.block_id"() : () -> index
      %5 = "warp.block_count"() : () -> index
      %6 = arith.minsi %tiles, %c1073741824 : index
      %7 = arith.maxsi %6, %c0 : index
      %8:3 = scf.for %tile = %4 to %7 step %5 iter_args(%q_count = %c0, %k_count = %c0, %v_count = %c0) -> (index, index, index) {
        %9 = arith.divui %tile, %5 : index
        %10 = arith.addi %9, %c1 : index
        %11 = arith.muli %10, %5 : index
        %12 = arith.remui %9, %c2 : index
        %13 = arith.cmpi ne, %12, %c0 : index
        %14 = arith.cmpi sle, %11, %7 : index
        %15 = arith.andi %13, %14 : i1
        %16 = arith.muli %9, %5 : index
        %17 = arith.addi %16, %11 : index
        %18 = arith.addi %tile, %c1 : index
        %19 = arith.subi %17, %18 : index
        %20 = arith.select %15, %19, %tile : index
        %21 = arith.minsi %20, %c1073741824 : index
        %22 = arith.maxsi %21, %c0 : index
        %23 = arith.muli %blocks, %c16 : index
        %24 = arith.divui %22, %23 : index
        %25 = arith.muli %24, %c16 : index
        %26 = arith.minsi %25, %c1073741824 : index
        %27 = arith.maxsi %26, %c0 : index
        %28 = arith.remui %22, %23 : index
        %29 = arith.minsi %2, %c1073741824 : index
        %30 = arith.maxsi %29, %c0 : index
        %31 = arith.subi %30, %27 : index
        %32 = arith.minsi %31, %c16 : index
        %33 = arith.maxsi %32, %c1 : index
        %34 = arith.subi %blocks, %c1 : index
        %35 = arith.divui %28, %33 : index
        %36 = arith.minsi %35, %34 : index
        %37 = arith.maxsi %36, %c0 : index
        %block = arith.subi %34, %37 : index
        %38 = arith.remui %28, %33 : index
        %39 = arith.addi %27, %38 : index
        %40 = arith.minsi %39, %c1073741824 : index
        %41 = arith.maxsi %40, %c0 : index
        %head = arith.remsi %41, %dim_10 : index
        %batch = arith.divsi %41, %dim_10 : index
        %42 = arith.muli %block, %c192 : index
        %43 = arith.addi %42, %c192 : index
        %44 = arith.minsi %43, %dim_12 : index
        %q_stage:2 = "warp.stage"(%q_count) {stages = 1 : i64} : (index) -> (index, index)
        "warp.wait"(%q_full, %q_stage#0, %q_stage#1) : (!warp.barrier<1 : i64, 1 : i64>, index, index) -> ()
        %45 = arith.addi %q_count, %c1 : index
        %46:2 = "warp.map"() ({
        ^bb0(%i: index):
          "warp.yield"(%cst_9, %cst_8) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
        }) {reductions = ["", ""], resultSegmentSizes = array<i32: 2, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
        %47 = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          "warp.yield"(%cst_8) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
        %48 = arith.addi %42, %c1 : index
        %49 = arith.minsi %48, %dim : index
        %50 = arith.minsi %44, %dim : index
        %51 = arith.divsi %49, %c128 : index
        %52 = arith.muli %51, %c128 : index
        %53 = arith.maxsi %52, %c0 : index
        %54 = arith.maxsi %53, %c0 : index
        %55 = arith.ceildivsi %54, %c128 : index
        %56 = arith.subi %50, %53 : index
        %57 = arith.maxsi %56, %c0 : index
        %58 = arith.ceildivsi %57, %c128 : index
        %59 = arith.addi %55, %58 : index
        %60 = arith.cmpi sgt, %59, %c0 : index
        %61:5 = scf.if %60 -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index) {
          %67 = arith.cmpi sgt, %55, %c0 : index
          %68 = arith.subi %c0, %55 : index
          %69 = arith.muli %68, %c128 : index
          %70 = arith.addi %53, %69 : index
          %71 = arith.select %67, %c0, %70 : index
          %72 = arith.subi %50, %71 : index
          %73 = arith.minsi %72, %c128 : index
          %k_stage:2 = "warp.stage"(%k_count) {stages = 3 : i64} : (index) -> (index, index)
          %k_tile = "warp.view"(%k_buffer, %k_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          "warp.wait"(%k_full, %k_stage#0, %k_stage#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
          %74 = arith.addi %k_count, %c1 : index
          %75 = "warp.view"(%q_buffer, %q_stage#0, %first_row, %c0) : (memref<1x192x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<64x64xf16, #warp.shared<128 : i64>>
          %76 = "warp.registers"() : () -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
          "warp.mma_begin"() : () -> ()
          %77 = "warp.mma_async"(%76, %75, %k_tile, %false) {transpose_a = false, transpose_b = true} : (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>
          "warp.mma_commit"() : () -> ()
          %78 = "warp.mma_wait"(%77) {pending = 0 : i64} : (!warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
          "warp.arrive"(%k_free, %k_stage#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
          %79 = arith.cmpi sle, %55, %c0 : index
          %80:2 = scf.if %79 -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) {
            %90:2 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %91 = arith.addi %first_row, %i : index
              %92 = arith.addi %42, %91 : index
              %93 = arith.minsi %92, %1 : index
              %extracted = tensor.extract %78[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              %94 = arith.addi %71, %j : index
              %95 = arith.cmpi sge, %93, %94 : index
              %96 = arith.select %95, %extracted, %cst_6 : f32
              %97 = arith.cmpi slt, %j, %73 : index
              %98 = arith.select %97, %96, %cst_9 : f32
              "warp.yield"(%96, %98) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
            }) {reductions = ["", "max"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
            scf.yield %90#0, %90#1 : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
          } else {
            %90 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %78[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              "warp.yield"(%extracted) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 128>} : () -> tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            scf.yield %78, %90 : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
          }
          %81 = "warp.reduce"(%80#1) {kind = "max"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %82:5 = scf.if %67 -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) {
            %90:3 = "warp.map"() ({
            ^bb0(%i: index):
              %extracted = tensor.extract %46#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %extracted_14 = tensor.extract %81[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %92 = arith.mulf %extracted_14, %cst_7 : f32
              %max_new = arith.maximumf %extracted, %92 {gpu.free} : f32
              %93 = arith.subf %max_new, %extracted : f32
              %94 = arith.cmpf ole, %93, %cst_5 : f32
              %max_new_15 = arith.select %94, %extracted, %max_new : f32
              %95 = arith.subf %extracted, %max_new_15 : f32
              %96 = arith.mulf %95, %cst_4 : f32
              %rescale = math.exp2 %96 : f32
              %extracted_16 = tensor.extract %46#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %97 = arith.mulf %extracted_16, %rescale : f32
              "warp.yield"(%max_new_15, %rescale, %97) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
            }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
            %91:2 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %80#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              %extracted_14 = tensor.extract %90#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %92 = arith.mulf %extracted_14, %cst_2 : f32
              %93 = arith.minimumf %92, %cst_1 : f32
              %94 = math.fma %extracted, %cst_3, %93 : f32
              %weight = math.exp2 %94 : f32
              %95 = arith.truncf %weight : f32 to f16
              "warp.yield"(%95, %weight) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
            }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
            scf.yield %90#0, %90#1, %90#2, %91#0, %91#1 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
          } else {
            %90:3 = "warp.map"() ({
            ^bb0(%i: index):
              %extracted = tensor.extract %46#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %extracted_14 = tensor.extract %81[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %92 = arith.mulf %extracted_14, %cst_7 : f32
              %93 = arith.cmpf oeq, %extracted_14, %cst_9 : f32
              %94 = arith.select %93, %cst_9, %92 : f32
              %max_new = arith.maximumf %extracted, %94 {gpu.free} : f32
              %95 = arith.subf %max_new, %extracted : f32
              %96 = arith.cmpf ole, %95, %cst_5 : f32
              %max_new_15 = arith.select %96, %extracted, %max_new : f32
              %97 = arith.subf %extracted, %max_new_15 : f32
              %98 = arith.mulf %97, %cst_4 : f32
              %rescale = math.exp2 %98 : f32
              %extracted_16 = tensor.extract %46#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %99 = arith.mulf %extracted_16, %rescale : f32
              "warp.yield"(%max_new_15, %rescale, %99) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
            }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
            %91:2 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %80#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              %extracted_14 = tensor.extract %90#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %92 = arith.mulf %extracted_14, %cst_2 : f32
              %93 = arith.minimumf %92, %cst_1 : f32
              %94 = math.fma %extracted, %cst_3, %93 : f32
              %weight = math.exp2 %94 : f32
              %95 = arith.cmpi slt, %j, %73 : index
              %96 = arith.select %95, %weight, %cst_8 : f32
              %97 = arith.truncf %96 : f32 to f16
              "warp.yield"(%97, %96) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
            }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
            scf.yield %90#0, %90#1, %90#2, %91#0, %91#1 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
          }
          %83 = "warp.reduce"(%82#4) {kind = "sum"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %84 = "warp.map"() ({
          ^bb0(%i: index):
            %extracted = tensor.extract %82#2[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %extracted_14 = tensor.extract %83[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %sum_new = arith.addf %extracted, %extracted_14 : f32
            "warp.yield"(%sum_new) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %85:7 = scf.for %arg10 = %c1 to %59 step %c1 iter_args(%arg11 = %82#0, %arg12 = %84, %arg13 = %47, %k_count_14 = %74, %v_count_15 = %v_count, %arg16 = %82#1, %arg17 = %82#3) -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>) {
            %90 = arith.cmpi slt, %arg10, %55 : index
            %91 = arith.muli %arg10, %c128 : index
            %92 = arith.subi %arg10, %55 : index
            %93 = arith.muli %92, %c128 : index
            %94 = arith.addi %53, %93 : index
            %95 = arith.select %90, %91, %94 : index
            %96 = arith.subi %50, %95 : index
            %97 = arith.minsi %96, %c128 : index
            %k_stage_16:2 = "warp.stage"(%k_count_14) {stages = 3 : i64} : (index) -> (index, index)
            %k_tile_17 = "warp.view"(%k_buffer, %k_stage_16#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
            "warp.wait"(%k_full, %k_stage_16#0, %k_stage_16#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
            %98 = arith.addi %k_count_14, %c1 : index
            %99 = "warp.registers"() : () -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            %100 = arith.addi %warpgroup, %c1 : index
            "warp.named_sync"(%100) {threads = 256 : i64} : (index) -> ()
            "warp.mma_begin"() : () -> ()
            %101 = "warp.mma_async"(%99, %75, %k_tile_17, %false) {transpose_a = false, transpose_b = true} : (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>
            "warp.mma_commit"() : () -> ()
            %v_stage_18:2 = "warp.stage"(%v_count_15) {stages = 3 : i64} : (index) -> (index, index)
            %v_tile_19 = "warp.view"(%v_buffer, %v_stage_18#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
            "warp.wait"(%v_full, %v_stage_18#0, %v_stage_18#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
            %102 = arith.addi %v_count_15, %c1 : index
            %103 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %arg13[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
              %extracted_20 = tensor.extract %arg16[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %115 = arith.mulf %extracted, %extracted_20 : f32
              "warp.yield"(%115) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            "warp.mma_begin"() : () -> ()
            %104 = "warp.mma_async"(%103, %arg17, %v_tile_19, %true) {transpose_a = false, transpose_b = false} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
            "warp.mma_commit"() : () -> ()
            %105 = arith.remui %100, %c3 : index
            %106 = arith.addi %105, %c1 : index
            "warp.named_arrive"(%106) {threads = 256 : i64} : (index) -> ()
            %107 = "warp.mma_wait"(%101) {pending = 1 : i64} : (!warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            "warp.arrive"(%k_free, %k_stage_16#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
            %108 = arith.cmpi sge, %arg10, %55 : index
            %109:2 = scf.if %108 -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) {
              %115:2 = "warp.map"() ({
              ^bb0(%i: index, %j: index):
                %116 = arith.addi %first_row, %i : index
                %117 = arith.addi %42, %116 : index
                %118 = arith.minsi %117, %1 : index
                %extracted = tensor.extract %107[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
                %119 = arith.addi %95, %j : index
                %120 = arith.cmpi sge, %118, %119 : index
                %121 = arith.select %120, %extracted, %cst_6 : f32
                %122 = arith.cmpi slt, %j, %97 : index
                %123 = arith.select %122, %121, %cst_9 : f32
                "warp.yield"(%121, %123) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
              }) {reductions = ["", "max"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
              scf.yield %115#0, %115#1 : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            } else {
              %115 = "warp.map"() ({
              ^bb0(%i: index, %j: index):
                %extracted = tensor.extract %107[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
                "warp.yield"(%extracted) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
              }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 128>} : () -> tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
              scf.yield %107, %115 : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            }
            %110 = "warp.reduce"(%109#1) {kind = "max"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %111 = "warp.mma_wait"(%104) {pending = 0 : i64} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            "warp.arrive"(%v_free, %v_stage_18#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
            %112:5 = scf.if %90 -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) {
              %115:3 = "warp.map"() ({
              ^bb0(%i: index):
                %extracted = tensor.extract %arg11[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %extracted_20 = tensor.extract %110[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %117 = arith.mulf %extracted_20, %cst_7 : f32
                %max_new = arith.maximumf %extracted, %117 {gpu.free} : f32
                %118 = arith.subf %max_new, %extracted : f32
                %119 = arith.cmpf ole, %118, %cst_5 : f32
                %max_new_21 = arith.select %119, %extracted, %max_new : f32
                %120 = arith.subf %extracted, %max_new_21 : f32
                %121 = arith.mulf %120, %cst_4 : f32
                %rescale = math.exp2 %121 : f32
                %extracted_22 = tensor.extract %arg12[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %122 = arith.mulf %extracted_22, %rescale : f32
                "warp.yield"(%max_new_21, %rescale, %122) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
              }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
              %116:2 = "warp.map"() ({
              ^bb0(%i: index, %j: index):
                %extracted = tensor.extract %109#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
                %extracted_20 = tensor.extract %115#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %117 = arith.mulf %extracted_20, %cst_2 : f32
                %118 = arith.minimumf %117, %cst_1 : f32
                %119 = math.fma %extracted, %cst_3, %118 : f32
                %weight = math.exp2 %119 : f32
                %120 = arith.truncf %weight : f32 to f16
                "warp.yield"(%120, %weight) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
              }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
              scf.yield %115#0, %115#1, %115#2, %116#0, %116#1 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            } else {
              %115:3 = "warp.map"() ({
              ^bb0(%i: index):
                %extracted = tensor.extract %arg11[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %extracted_20 = tensor.extract %110[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %117 = arith.mulf %extracted_20, %cst_7 : f32
                %118 = arith.cmpf oeq, %extracted_20, %cst_9 : f32
                %119 = arith.select %118, %cst_9, %117 : f32
                %max_new = arith.maximumf %extracted, %119 {gpu.free} : f32
                %120 = arith.subf %max_new, %extracted : f32
                %121 = arith.cmpf ole, %120, %cst_5 : f32
                %max_new_21 = arith.select %121, %extracted, %max_new : f32
                %122 = arith.subf %extracted, %max_new_21 : f32
                %123 = arith.mulf %122, %cst_4 : f32
                %rescale = math.exp2 %123 : f32
                %extracted_22 = tensor.extract %arg12[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %124 = arith.mulf %extracted_22, %rescale : f32
                "warp.yield"(%max_new_21, %rescale, %124) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
              }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
              %116:2 = "warp.map"() ({
              ^bb0(%i: index, %j: index):
                %extracted = tensor.extract %109#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
                %extracted_20 = tensor.extract %115#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %117 = arith.mulf %extracted_20, %cst_2 : f32
                %118 = arith.minimumf %117, %cst_1 : f32
                %119 = math.fma %extracted, %cst_3, %118 : f32
                %weight = math.exp2 %119 : f32
                %120 = arith.cmpi slt, %j, %97 : index
                %121 = arith.select %120, %weight, %cst_8 : f32
                %122 = arith.truncf %121 : f32 to f16
                "warp.yield"(%122, %121) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
              }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
              scf.yield %115#0, %115#1, %115#2, %116#0, %116#1 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            }
            %113 = "warp.reduce"(%112#4) {kind = "sum"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %114 = "warp.map"() ({
            ^bb0(%i: index):
              %extracted = tensor.extract %112#2[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %extracted_20 = tensor.extract %113[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %sum_new = arith.addf %extracted, %extracted_20 : f32
              "warp.yield"(%sum_new) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            scf.yield %112#0, %114, %111, %98, %102, %112#1, %112#3 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>
          }
          %v_stage:2 = "warp.stage"(%85#4) {stages = 3 : i64} : (index) -> (index, index)
          %v_tile = "warp.view"(%v_buffer, %v_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          "warp.wait"(%v_full, %v_stage#0, %v_stage#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
          %86 = arith.addi %85#4, %c1 : index
          %87 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %extracted = tensor.extract %85#2[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            %extracted_14 = tensor.extract %85#5[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %90 = arith.mulf %extracted, %extracted_14 : f32
            "warp.yield"(%90) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          "warp.mma_begin"() : () -> ()
          %88 = "warp.mma_async"(%87, %85#6, %v_tile, %true) {transpose_a = false, transpose_b = false} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
          "warp.mma_commit"() : () -> ()
          %89 = "warp.mma_wait"(%88) {pending = 0 : i64} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          "warp.arrive"(%v_free, %v_stage#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
          scf.yield %85#0, %85#1, %89, %85#3, %86 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index
        } else {
          scf.yield %46#0, %46#1, %47, %k_count, %v_count : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index
        }
        "warp.arrive"(%q_free, %q_stage#0) : (!warp.barrier<1 : i64, 12 : i64>, index) -> ()
        %62 = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          %extracted = tensor.extract %61#2[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          %extracted_14 = tensor.extract %61#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %67 = arith.divf %cst_0, %extracted_14 : f32
          %68 = arith.mulf %extracted, %67 : f32
          %69 = arith.truncf %68 : f32 to f16
          "warp.yield"(%69) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f16) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
        %63 = arith.addi %42, %first_row : index
        %64 = arith.addi %warpgroup, %c8 : index
        %65 = "warp.view"(%o_buffer, %c0, %first_row, %c0) : (memref<1x192x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<64x64xf16, #warp.shared<128 : i64>>
        "warp.elect"() ({
          "warp.store_wait"() {pending = 0 : i64, read = true} : () -> ()
        }) : () -> ()
        "warp.named_sync"(%64) {threads = 128 : i64} : (index) -> ()
        "warp.write"(%62, %65) : (tensor<64x64xf16, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>) -> ()
        "warp.fence_async"() : () -> ()
        "warp.named_sync"(%64) {threads = 128 : i64} : (index) -> ()
        "warp.elect"() ({
          "warp.store_async"(%65, %o, %batch, %head, %63, %c0) : (memref<64x64xf16, #warp.shared<128 : i64>>, memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index) -> ()
          "warp.store_commit"() : () -> ()
        }) : () -> ()
        %66 = "warp.map"() ({
        ^bb0(%i: index):
          %extracted = tensor.extract %61#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %extracted_14 = tensor.extract %61#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %67 = math.log2 %extracted_14 : f32
          %68 = arith.mulf %67, %cst : f32
          %69 = arith.addf %extracted, %68 : f32
          "warp.yield"(%69) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
        "warp.store"(%66, %lse, %batch, %head, %63) : (tensor<64xf32, #warp.layout<"wgmma", "rows">>, memref<?x?x?xf32, strided<[?, ?, ?]>>, index, index, index) -> ()
        scf.yield %45, %61#3, %61#4 : index, index, index
      }
      "warp.elect"() ({
        "warp.store_wait"() {pending = 0 : i64, read = false} : () -> ()
      }) : () -> ()
    }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 3 : i64, warps = 4 : i64} : () -> ()
  }) {function = "attention", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64, sym_name = "attention", warp.schedule = {align = "end", arch = "sm_90a", consumer_registers = 160 : i64, dropout = "own", emitter = "hopper", flow = "flat", group = 16 : i64, optimistic = 1 : i64, order = "dynamic", partial = "block", pin = 0 : i64, producer_registers = 32 : i64, queries = "shared", reverse = 1 : i64, skip = 0 : i64, stages = 3 : i64, staging = "query", sums = "product", turns = 1 : i64, vote = 1 : i64}} : () -> ()
}
