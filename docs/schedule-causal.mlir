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
        %8 = arith.muli %blocks, %c16 : index
        %9 = arith.divui %tile, %8 : index
        %10 = arith.muli %9, %c16 : index
        %11 = arith.minsi %10, %c1073741824 : index
        %12 = arith.maxsi %11, %c0 : index
        %13 = arith.remui %tile, %8 : index
        %14 = arith.minsi %2, %c1073741824 : index
        %15 = arith.maxsi %14, %c0 : index
        %16 = arith.subi %15, %12 : index
        %17 = arith.minsi %16, %c16 : index
        %18 = arith.maxsi %17, %c1 : index
        %19 = arith.divui %13, %4 : index
        %20 = arith.addi %19, %c1 : index
        %21 = arith.muli %19, %4 : index
        %22 = arith.muli %20, %4 : index
        %23 = arith.remui %19, %c2 : index
        %24 = arith.cmpi ne, %23, %c0 : index
        %25 = arith.muli %18, %blocks : index
        %26 = arith.cmpi sle, %22, %25 : index
        %27 = arith.addi %21, %22 : index
        %28 = arith.addi %13, %c1 : index
        %29 = arith.subi %27, %28 : index
        %30 = arith.andi %24, %26 : i1
        %31 = arith.select %30, %29, %13 : index
        %32 = arith.minsi %31, %c1073741824 : index
        %33 = arith.maxsi %32, %c0 : index
        %34 = arith.subi %blocks, %c1 : index
        %35 = arith.divui %33, %18 : index
        %36 = arith.minsi %35, %34 : index
        %37 = arith.maxsi %36, %c0 : index
        %block = arith.subi %34, %37 : index
        %38 = arith.remui %33, %18 : index
        %39 = arith.addi %12, %38 : index
        %40 = arith.minsi %39, %c1073741824 : index
        %41 = arith.maxsi %40, %c0 : index
        %head = arith.remsi %41, %dim_10 : index
        %batch = arith.divsi %41, %dim_10 : index
        %42 = arith.muli %block, %c192 : index
        %43 = arith.addi %42, %c192 : index
        %44 = arith.minsi %43, %dim_12 : index
        %45 = arith.divsi %head, %0 : index
        %q_stage:2 = "warp.stage"(%q_count) {stages = 1 : i64} : (index) -> (index, index)
        %q_tile = "warp.view"(%q_buffer, %q_stage#0, %c0, %c0) : (memref<1x192x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<192x64xf16, #warp.shared<128 : i64>>
        %46 = arith.xori %q_stage#1, %c1 : index
        "warp.wait"(%q_free, %q_stage#0, %46) : (!warp.barrier<1 : i64, 12 : i64>, index, index) -> ()
        "warp.elect"() ({
          "warp.arrive_expect"(%q_full, %q_stage#0) {bytes = 24576 : i64} : (!warp.barrier<1 : i64, 1 : i64>, index) -> ()
          "warp.copy_async"(%q, %batch, %head, %42, %c0, %q_tile, %q_full, %q_stage#0) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index, memref<192x64xf16, #warp.shared<128 : i64>>, !warp.barrier<1 : i64, 1 : i64>, index) -> ()
        }) : () -> ()
        %47 = arith.addi %q_count, %c1 : index
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
        %60:2 = scf.for %arg10 = %c0 to %59 step %c1 iter_args(%k_count_14 = %k_count, %v_count_15 = %v_count) -> (index, index) {
          %61 = arith.cmpi slt, %arg10, %55 : index
          %62 = arith.muli %arg10, %c128 : index
          %63 = arith.subi %arg10, %55 : index
          %64 = arith.muli %63, %c128 : index
          %65 = arith.addi %53, %64 : index
          %66 = arith.select %61, %62, %65 : index
          %k_stage:2 = "warp.stage"(%k_count_14) {stages = 3 : i64} : (index) -> (index, index)
          %k_tile = "warp.view"(%k_buffer, %k_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          %67 = arith.xori %k_stage#1, %c1 : index
          "warp.wait"(%k_free, %k_stage#0, %67) : (!warp.barrier<3 : i64, 12 : i64>, index, index) -> ()
          "warp.elect"() ({
            "warp.arrive_expect"(%k_full, %k_stage#0) {bytes = 16384 : i64} : (!warp.barrier<3 : i64, 1 : i64>, index) -> ()
            "warp.copy_async"(%k, %batch, %45, %66, %c0, %k_tile, %k_full, %k_stage#0) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index, memref<128x64xf16, #warp.shared<128 : i64>>, !warp.barrier<3 : i64, 1 : i64>, index) -> ()
          }) : () -> ()
          %68 = arith.addi %k_count_14, %c1 : index
          %v_stage:2 = "warp.stage"(%v_count_15) {stages = 3 : i64} : (index) -> (index, index)
          %v_tile = "warp.view"(%v_buffer, %v_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          %69 = arith.xori %v_stage#1, %c1 : index
          "warp.wait"(%v_free, %v_stage#0, %69) : (!warp.barrier<3 : i64, 12 : i64>, index, index) -> ()
          "warp.elect"() ({
            "warp.arrive_expect"(%v_full, %v_stage#0) {bytes = 16384 : i64} : (!warp.barrier<3 : i64, 1 : i64>, index) -> ()
            "warp.copy_async"(%v, %batch, %45, %66, %c0, %v_tile, %v_full, %v_stage#0) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index, memref<128x64xf16, #warp.shared<128 : i64>>, !warp.barrier<3 : i64, 1 : i64>, index) -> ()
          }) : () -> ()
          %70 = arith.addi %v_count_15, %c1 : index
          scf.yield %68, %70 : index, index
        }
        scf.yield %47, %60#0, %60#1 : index, index, index
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
        %9 = arith.muli %blocks, %c16 : index
        %10 = arith.divui %tile, %9 : index
        %11 = arith.muli %10, %c16 : index
        %12 = arith.minsi %11, %c1073741824 : index
        %13 = arith.maxsi %12, %c0 : index
        %14 = arith.remui %tile, %9 : index
        %15 = arith.minsi %2, %c1073741824 : index
        %16 = arith.maxsi %15, %c0 : index
        %17 = arith.subi %16, %13 : index
        %18 = arith.minsi %17, %c16 : index
        %19 = arith.maxsi %18, %c1 : index
        %20 = arith.divui %14, %5 : index
        %21 = arith.addi %20, %c1 : index
        %22 = arith.muli %20, %5 : index
        %23 = arith.muli %21, %5 : index
        %24 = arith.remui %20, %c2 : index
        %25 = arith.cmpi ne, %24, %c0 : index
        %26 = arith.muli %19, %blocks : index
        %27 = arith.cmpi sle, %23, %26 : index
        %28 = arith.addi %22, %23 : index
        %29 = arith.addi %14, %c1 : index
        %30 = arith.subi %28, %29 : index
        %31 = arith.andi %25, %27 : i1
        %32 = arith.select %31, %30, %14 : index
        %33 = arith.minsi %32, %c1073741824 : index
        %34 = arith.maxsi %33, %c0 : index
        %35 = arith.subi %blocks, %c1 : index
        %36 = arith.divui %34, %19 : index
        %37 = arith.minsi %36, %35 : index
        %38 = arith.maxsi %37, %c0 : index
        %block = arith.subi %35, %38 : index
        %39 = arith.remui %34, %19 : index
        %40 = arith.addi %13, %39 : index
        %41 = arith.minsi %40, %c1073741824 : index
        %42 = arith.maxsi %41, %c0 : index
        %head = arith.remsi %42, %dim_10 : index
        %batch = arith.divsi %42, %dim_10 : index
        %43 = arith.muli %block, %c192 : index
        %44 = arith.addi %43, %c192 : index
        %45 = arith.minsi %44, %dim_12 : index
        %q_stage:2 = "warp.stage"(%q_count) {stages = 1 : i64} : (index) -> (index, index)
        "warp.wait"(%q_full, %q_stage#0, %q_stage#1) : (!warp.barrier<1 : i64, 1 : i64>, index, index) -> ()
        %46 = arith.addi %q_count, %c1 : index
        %47:2 = "warp.map"() ({
        ^bb0(%i: index):
          "warp.yield"(%cst_9, %cst_8) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
        }) {reductions = ["", ""], resultSegmentSizes = array<i32: 2, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
        %48 = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          "warp.yield"(%cst_8) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
        %49 = arith.addi %43, %c1 : index
        %50 = arith.minsi %49, %dim : index
        %51 = arith.minsi %45, %dim : index
        %52 = arith.divsi %50, %c128 : index
        %53 = arith.muli %52, %c128 : index
        %54 = arith.maxsi %53, %c0 : index
        %55 = arith.maxsi %54, %c0 : index
        %56 = arith.ceildivsi %55, %c128 : index
        %57 = arith.subi %51, %54 : index
        %58 = arith.maxsi %57, %c0 : index
        %59 = arith.ceildivsi %58, %c128 : index
        %60 = arith.addi %56, %59 : index
        %61 = arith.cmpi sgt, %60, %c0 : index
        %62:5 = scf.if %61 -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index) {
          %68 = arith.cmpi sgt, %56, %c0 : index
          %69 = arith.subi %c0, %56 : index
          %70 = arith.muli %69, %c128 : index
          %71 = arith.addi %54, %70 : index
          %72 = arith.select %68, %c0, %71 : index
          %73 = arith.subi %51, %72 : index
          %74 = arith.minsi %73, %c128 : index
          %k_stage:2 = "warp.stage"(%k_count) {stages = 3 : i64} : (index) -> (index, index)
          %k_tile = "warp.view"(%k_buffer, %k_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          "warp.wait"(%k_full, %k_stage#0, %k_stage#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
          %75 = arith.addi %k_count, %c1 : index
          %76 = "warp.view"(%q_buffer, %q_stage#0, %first_row, %c0) : (memref<1x192x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<64x64xf16, #warp.shared<128 : i64>>
          %77 = "warp.registers"() : () -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
          "warp.mma_begin"() : () -> ()
          %78 = "warp.mma_async"(%77, %76, %k_tile, %false) {transpose_a = false, transpose_b = true} : (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>
          "warp.mma_commit"() : () -> ()
          %79 = "warp.mma_wait"(%78) {pending = 0 : i64} : (!warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
          "warp.arrive"(%k_free, %k_stage#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
          %80 = arith.cmpi sle, %56, %c0 : index
          %81:2 = scf.if %80 -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) {
            %91:2 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %92 = arith.addi %first_row, %i : index
              %93 = arith.addi %43, %92 : index
              %94 = arith.minsi %93, %1 : index
              %extracted = tensor.extract %79[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              %95 = arith.addi %72, %j : index
              %96 = arith.cmpi sge, %94, %95 : index
              %97 = arith.select %96, %extracted, %cst_6 : f32
              %98 = arith.cmpi slt, %j, %74 : index
              %99 = arith.select %98, %97, %cst_9 : f32
              "warp.yield"(%97, %99) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
            }) {reductions = ["", "max"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
            scf.yield %91#0, %91#1 : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
          } else {
            %91 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %79[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              "warp.yield"(%extracted) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 128>} : () -> tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            scf.yield %79, %91 : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
          }
          %82 = "warp.reduce"(%81#1) {kind = "max"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %83:5 = scf.if %68 -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) {
            %91:3 = "warp.map"() ({
            ^bb0(%i: index):
              %extracted = tensor.extract %47#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %extracted_14 = tensor.extract %82[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %93 = arith.mulf %extracted_14, %cst_7 : f32
              %max_new = arith.maximumf %extracted, %93 {gpu.free} : f32
              %94 = arith.subf %max_new, %extracted : f32
              %95 = arith.cmpf ole, %94, %cst_5 : f32
              %max_new_15 = arith.select %95, %extracted, %max_new : f32
              %96 = arith.subf %extracted, %max_new_15 : f32
              %97 = arith.mulf %96, %cst_4 : f32
              %rescale = math.exp2 %97 : f32
              %extracted_16 = tensor.extract %47#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %98 = arith.mulf %extracted_16, %rescale : f32
              "warp.yield"(%max_new_15, %rescale, %98) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
            }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
            %92:2 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %81#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              %extracted_14 = tensor.extract %91#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %93 = arith.mulf %extracted_14, %cst_2 : f32
              %94 = arith.minimumf %93, %cst_1 : f32
              %95 = math.fma %extracted, %cst_3, %94 : f32
              %weight = math.exp2 %95 : f32
              %96 = arith.truncf %weight : f32 to f16
              "warp.yield"(%96, %weight) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
            }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
            scf.yield %91#0, %91#1, %91#2, %92#0, %92#1 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
          } else {
            %91:3 = "warp.map"() ({
            ^bb0(%i: index):
              %extracted = tensor.extract %47#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %extracted_14 = tensor.extract %82[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %93 = arith.mulf %extracted_14, %cst_7 : f32
              %94 = arith.cmpf oeq, %extracted_14, %cst_9 : f32
              %95 = arith.select %94, %cst_9, %93 : f32
              %max_new = arith.maximumf %extracted, %95 {gpu.free} : f32
              %96 = arith.subf %max_new, %extracted : f32
              %97 = arith.cmpf ole, %96, %cst_5 : f32
              %max_new_15 = arith.select %97, %extracted, %max_new : f32
              %98 = arith.subf %extracted, %max_new_15 : f32
              %99 = arith.mulf %98, %cst_4 : f32
              %rescale = math.exp2 %99 : f32
              %extracted_16 = tensor.extract %47#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %100 = arith.mulf %extracted_16, %rescale : f32
              "warp.yield"(%max_new_15, %rescale, %100) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
            }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
            %92:2 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %81#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
              %extracted_14 = tensor.extract %91#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %93 = arith.mulf %extracted_14, %cst_2 : f32
              %94 = arith.minimumf %93, %cst_1 : f32
              %95 = math.fma %extracted, %cst_3, %94 : f32
              %weight = math.exp2 %95 : f32
              %96 = arith.cmpi slt, %j, %74 : index
              %97 = arith.select %96, %weight, %cst_8 : f32
              %98 = arith.truncf %97 : f32 to f16
              "warp.yield"(%98, %97) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
            }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
            scf.yield %91#0, %91#1, %91#2, %92#0, %92#1 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
          }
          %84 = "warp.reduce"(%83#4) {kind = "sum"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %85 = "warp.map"() ({
          ^bb0(%i: index):
            %extracted = tensor.extract %83#2[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %extracted_14 = tensor.extract %84[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %sum_new = arith.addf %extracted, %extracted_14 : f32
            "warp.yield"(%sum_new) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %86:7 = scf.for %arg10 = %c1 to %60 step %c1 iter_args(%arg11 = %83#0, %arg12 = %85, %arg13 = %48, %k_count_14 = %75, %v_count_15 = %v_count, %arg16 = %83#1, %arg17 = %83#3) -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>) {
            %91 = arith.cmpi slt, %arg10, %56 : index
            %92 = arith.muli %arg10, %c128 : index
            %93 = arith.subi %arg10, %56 : index
            %94 = arith.muli %93, %c128 : index
            %95 = arith.addi %54, %94 : index
            %96 = arith.select %91, %92, %95 : index
            %97 = arith.subi %51, %96 : index
            %98 = arith.minsi %97, %c128 : index
            %k_stage_16:2 = "warp.stage"(%k_count_14) {stages = 3 : i64} : (index) -> (index, index)
            %k_tile_17 = "warp.view"(%k_buffer, %k_stage_16#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
            "warp.wait"(%k_full, %k_stage_16#0, %k_stage_16#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
            %99 = arith.addi %k_count_14, %c1 : index
            %100 = "warp.registers"() : () -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            %101 = arith.addi %warpgroup, %c1 : index
            "warp.named_sync"(%101) {threads = 256 : i64} : (index) -> ()
            "warp.mma_begin"() : () -> ()
            %102 = "warp.mma_async"(%100, %76, %k_tile_17, %false) {transpose_a = false, transpose_b = true} : (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>
            "warp.mma_commit"() : () -> ()
            %v_stage_18:2 = "warp.stage"(%v_count_15) {stages = 3 : i64} : (index) -> (index, index)
            %v_tile_19 = "warp.view"(%v_buffer, %v_stage_18#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
            "warp.wait"(%v_full, %v_stage_18#0, %v_stage_18#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
            %103 = arith.addi %v_count_15, %c1 : index
            %104 = "warp.map"() ({
            ^bb0(%i: index, %j: index):
              %extracted = tensor.extract %arg13[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
              %extracted_20 = tensor.extract %arg16[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %116 = arith.mulf %extracted, %extracted_20 : f32
              "warp.yield"(%116) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            "warp.mma_begin"() : () -> ()
            %105 = "warp.mma_async"(%104, %arg17, %v_tile_19, %true) {transpose_a = false, transpose_b = false} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
            "warp.mma_commit"() : () -> ()
            %106 = arith.remui %101, %c3 : index
            %107 = arith.addi %106, %c1 : index
            "warp.named_arrive"(%107) {threads = 256 : i64} : (index) -> ()
            %108 = "warp.mma_wait"(%102) {pending = 1 : i64} : (!warp.pending<tensor<64x128xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
            "warp.arrive"(%k_free, %k_stage_16#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
            %109 = arith.cmpi sge, %arg10, %56 : index
            %110:2 = scf.if %109 -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) {
              %116:2 = "warp.map"() ({
              ^bb0(%i: index, %j: index):
                %117 = arith.addi %first_row, %i : index
                %118 = arith.addi %43, %117 : index
                %119 = arith.minsi %118, %1 : index
                %extracted = tensor.extract %108[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
                %120 = arith.addi %96, %j : index
                %121 = arith.cmpi sge, %119, %120 : index
                %122 = arith.select %121, %extracted, %cst_6 : f32
                %123 = arith.cmpi slt, %j, %98 : index
                %124 = arith.select %123, %122, %cst_9 : f32
                "warp.yield"(%122, %124) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
              }) {reductions = ["", "max"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
              scf.yield %116#0, %116#1 : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            } else {
              %116 = "warp.map"() ({
              ^bb0(%i: index, %j: index):
                %extracted = tensor.extract %108[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
                "warp.yield"(%extracted) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
              }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 128>} : () -> tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
              scf.yield %108, %116 : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            }
            %111 = "warp.reduce"(%110#1) {kind = "max"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %112 = "warp.mma_wait"(%105) {pending = 0 : i64} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            "warp.arrive"(%v_free, %v_stage_18#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
            %113:5 = scf.if %91 -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) {
              %116:3 = "warp.map"() ({
              ^bb0(%i: index):
                %extracted = tensor.extract %arg11[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %extracted_20 = tensor.extract %111[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %118 = arith.mulf %extracted_20, %cst_7 : f32
                %max_new = arith.maximumf %extracted, %118 {gpu.free} : f32
                %119 = arith.subf %max_new, %extracted : f32
                %120 = arith.cmpf ole, %119, %cst_5 : f32
                %max_new_21 = arith.select %120, %extracted, %max_new : f32
                %121 = arith.subf %extracted, %max_new_21 : f32
                %122 = arith.mulf %121, %cst_4 : f32
                %rescale = math.exp2 %122 : f32
                %extracted_22 = tensor.extract %arg12[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %123 = arith.mulf %extracted_22, %rescale : f32
                "warp.yield"(%max_new_21, %rescale, %123) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
              }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
              %117:2 = "warp.map"() ({
              ^bb0(%i: index, %j: index):
                %extracted = tensor.extract %110#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
                %extracted_20 = tensor.extract %116#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %118 = arith.mulf %extracted_20, %cst_2 : f32
                %119 = arith.minimumf %118, %cst_1 : f32
                %120 = math.fma %extracted, %cst_3, %119 : f32
                %weight = math.exp2 %120 : f32
                %121 = arith.truncf %weight : f32 to f16
                "warp.yield"(%121, %weight) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
              }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
              scf.yield %116#0, %116#1, %116#2, %117#0, %117#1 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            } else {
              %116:3 = "warp.map"() ({
              ^bb0(%i: index):
                %extracted = tensor.extract %arg11[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %extracted_20 = tensor.extract %111[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %118 = arith.mulf %extracted_20, %cst_7 : f32
                %119 = arith.cmpf oeq, %extracted_20, %cst_9 : f32
                %120 = arith.select %119, %cst_9, %118 : f32
                %max_new = arith.maximumf %extracted, %120 {gpu.free} : f32
                %121 = arith.subf %max_new, %extracted : f32
                %122 = arith.cmpf ole, %121, %cst_5 : f32
                %max_new_21 = arith.select %122, %extracted, %max_new : f32
                %123 = arith.subf %extracted, %max_new_21 : f32
                %124 = arith.mulf %123, %cst_4 : f32
                %rescale = math.exp2 %124 : f32
                %extracted_22 = tensor.extract %arg12[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %125 = arith.mulf %extracted_22, %rescale : f32
                "warp.yield"(%max_new_21, %rescale, %125) {operandSegmentSizes = array<i32: 3, 0, 0>} : (f32, f32, f32) -> ()
              }) {reductions = ["", "", ""], resultSegmentSizes = array<i32: 3, 0, 0>, shape = array<i64: 64>} : () -> (tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>)
              %117:2 = "warp.map"() ({
              ^bb0(%i: index, %j: index):
                %extracted = tensor.extract %110#0[%i, %j] : tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
                %extracted_20 = tensor.extract %116#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
                %118 = arith.mulf %extracted_20, %cst_2 : f32
                %119 = arith.minimumf %118, %cst_1 : f32
                %120 = math.fma %extracted, %cst_3, %119 : f32
                %weight = math.exp2 %120 : f32
                %121 = arith.cmpi slt, %j, %98 : index
                %122 = arith.select %121, %weight, %cst_8 : f32
                %123 = arith.truncf %122 : f32 to f16
                "warp.yield"(%123, %122) {operandSegmentSizes = array<i32: 1, 1, 0>} : (f16, f32) -> ()
              }) {reductions = ["", "sum"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 128>} : () -> (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>)
              scf.yield %116#0, %116#1, %116#2, %117#0, %117#1 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
            }
            %114 = "warp.reduce"(%113#4) {kind = "sum"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %115 = "warp.map"() ({
            ^bb0(%i: index):
              %extracted = tensor.extract %113#2[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %extracted_20 = tensor.extract %114[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
              %sum_new = arith.addf %extracted, %extracted_20 : f32
              "warp.yield"(%sum_new) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
            }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
            scf.yield %113#0, %115, %112, %99, %103, %113#1, %113#3 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>
          }
          %v_stage:2 = "warp.stage"(%86#4) {stages = 3 : i64} : (index) -> (index, index)
          %v_tile = "warp.view"(%v_buffer, %v_stage#0, %c0, %c0) : (memref<3x128x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>
          "warp.wait"(%v_full, %v_stage#0, %v_stage#1) : (!warp.barrier<3 : i64, 1 : i64>, index, index) -> ()
          %87 = arith.addi %86#4, %c1 : index
          %88 = "warp.map"() ({
          ^bb0(%i: index, %j: index):
            %extracted = tensor.extract %86#2[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
            %extracted_14 = tensor.extract %86#5[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
            %91 = arith.mulf %extracted, %extracted_14 : f32
            "warp.yield"(%91) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
          }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          "warp.mma_begin"() : () -> ()
          %89 = "warp.mma_async"(%88, %86#6, %v_tile, %true) {transpose_a = false, transpose_b = false} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<128x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
          "warp.mma_commit"() : () -> ()
          %90 = "warp.mma_wait"(%89) {pending = 0 : i64} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          "warp.arrive"(%v_free, %v_stage#0) : (!warp.barrier<3 : i64, 12 : i64>, index) -> ()
          scf.yield %86#0, %86#1, %90, %86#3, %87 : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index
        } else {
          scf.yield %47#0, %47#1, %48, %k_count, %v_count : tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64xf32, #warp.layout<"wgmma", "rows">>, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index
        }
        "warp.arrive"(%q_free, %q_stage#0) : (!warp.barrier<1 : i64, 12 : i64>, index) -> ()
        %63 = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          %extracted = tensor.extract %62#2[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
          %extracted_14 = tensor.extract %62#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %68 = arith.divf %cst_0, %extracted_14 : f32
          %69 = arith.mulf %extracted, %68 : f32
          %70 = arith.truncf %69 : f32 to f16
          "warp.yield"(%70) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f16) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
        %64 = arith.addi %43, %first_row : index
        %65 = arith.addi %warpgroup, %c8 : index
        %66 = "warp.view"(%o_buffer, %c0, %first_row, %c0) : (memref<1x192x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<64x64xf16, #warp.shared<128 : i64>>
        "warp.elect"() ({
          "warp.store_wait"() {pending = 0 : i64, read = true} : () -> ()
        }) : () -> ()
        "warp.named_sync"(%65) {threads = 128 : i64} : (index) -> ()
        "warp.write"(%63, %66) : (tensor<64x64xf16, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>) -> ()
        "warp.fence_async"() : () -> ()
        "warp.named_sync"(%65) {threads = 128 : i64} : (index) -> ()
        "warp.elect"() ({
          "warp.store_async"(%66, %o, %batch, %head, %64, %c0) : (memref<64x64xf16, #warp.shared<128 : i64>>, memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index) -> ()
          "warp.store_commit"() : () -> ()
        }) : () -> ()
        %67 = "warp.map"() ({
        ^bb0(%i: index):
          %extracted = tensor.extract %62#0[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %extracted_14 = tensor.extract %62#1[%i] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
          %68 = math.log2 %extracted_14 : f32
          %69 = arith.mulf %68, %cst : f32
          %70 = arith.addf %extracted, %69 : f32
          "warp.yield"(%70) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
        "warp.store"(%67, %lse, %batch, %head, %64) : (tensor<64xf32, #warp.layout<"wgmma", "rows">>, memref<?x?x?xf32, strided<[?, ?, ?]>>, index, index, index) -> ()
        scf.yield %46, %62#3, %62#4 : index, index, index
      }
      "warp.elect"() ({
        "warp.store_wait"() {pending = 0 : i64, read = false} : () -> ()
      }) : () -> ()
    }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 3 : i64, warps = 4 : i64} : () -> ()
  }) {function = "attention", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64, sym_name = "attention", warp.schedule = {align = "end", arch = "sm_90a", consumer_registers = 160 : i64, dropout = "own", emitter = "hopper", flow = "flat", group = 16 : i64, lazy_rescale = 1 : i64, order = "dynamic", partial = "block", pin = 0 : i64, producer_registers = 32 : i64, queries = "shared", reverse = 1 : i64, skip = 0 : i64, stages = 3 : i64, staging = "query", sums = "product", turns = 1 : i64, vote = 1 : i64}} : () -> ()
}
