// What chunks add to a state: a map scales rows of v, so that fragments are columns of the state and v is read transposed. Numbers of
// positions come with the tile of keys.
// DEFINE: %{segments} = attn-split-sequences{segment=512},func.func(cse),attn-simplify,attn-apply-mods,attn-outline{keep-hosts=false},nvidia-kernel,warp-assign-layouts
// RUN: attn-opt %inputs/linear/half.mlir -p '%{segments},canonicalize,cse' | FileCheck %s
// RUN: attn-opt %inputs/linear/half.mlir -p '%{segments},warp-specialize,warp-pipeline-loads{stages=4}' | FileCheck %s --check-prefix=ROLES

// Numbers have stages of their own, and two arrivals: sums of log decays, and the factors that they give.
// CHECK:      "warp.kernel"
// CHECK:        %[[SUMS:.*]] = "warp.alloc"() : () -> memref<6x64xf32
// CHECK:        %[[FACTORS:.*]] = "warp.alloc"() : () -> memref<6x64xf32
// CHECK:        %[[FULL:.*]] = "warp.mbarrier"() : () -> !warp.barrier<6 : i64, 2 : i64>
// CHECK:        %[[TURNED:.*]] = memref.transpose
// CHECK:        scf.for {{.*}} -> (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, index, index)
// CHECK:          scf.if
// CHECK:            "warp.make_rows"(%[[SUMS]], %[[FULL]]
// CHECK:            {summed = true}
// CHECK:            "warp.make_rows"(%[[FACTORS]], %[[FULL]]
// CHECK:              memref.load %[[SUMS]]
// CHECK:            {summed = false}
// CHECK:            "warp.copy_async"
// CHECK:          "warp.wait"(%[[FULL]]
// CHECK:          memref.load %[[SUMS]]{{.*}}%c63
// CHECK:          %[[VALUES:.*]] = "warp.read_transposed"
// CHECK:          %[[LEFT:.*]] = "warp.map"
// CHECK:            tensor.extract %[[VALUES]]
// CHECK:            memref.load %[[FACTORS]]
// CHECK:          "warp.mma_async"(%{{.*}}, %[[LEFT]], %{{.*}}) {transpose_a = false, transpose_b = false}
// CHECK:        "warp.store"(%{{.*}}, %[[TURNED]],

// Four warps make numbers of several stages at the same time.
// ROLES:      memref<6x64xf32
// ROLES:      "warp.role"
// ROLES:        "warp.make_rows"
// ROLES:      sym_name = "producer", warpgroups = 1 : i64, warps = 4 : i64
// ROLES:      "warp.role"
// ROLES-NOT:    "warp.make_rows"
// ROLES:      sym_name = "consumer"
