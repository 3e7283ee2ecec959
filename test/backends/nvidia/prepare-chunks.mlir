// What needs no state is made for all chunks at the same time: pairs, the inverse of the triangle as two pieces, which the scan multiplies, and
// numbers of rows, which it only reads.
// RUN: attn-opt %inputs/linear/gated-delta-half.mlir -p 'attn-outline{keep-hosts=false},nvidia-kernel' | FileCheck %s
// RUN: not attn-opt %inputs/linear/gated-delta-half.mlir -p 'nvidia-prepare-chunks{chunks=0}' 2>&1 | FileCheck %s --check-prefix=ERROR

// Of segments, too. What the scans for final states and transitions need of chunks is stored by the kernel that runs for outputs.
// RUN: attn-opt %inputs/linear/gated-delta-half.mlir -p 'attn-split-sequences{segment=512},func.func(cse),attn-outline{keep-hosts=false},nvidia-kernel' | FileCheck %s --check-prefix=SEGMENTS
// SEGMENTS-COUNT-2: inputs = [0, 1, 2, 3], kernel = "{{[a-z_0-9]+}}_chunks"}
// SEGMENTS:         inputs = [0, 1, 2, 3, 4], kernel = "{{[a-z_0-9]+}}_chunks"}

// ERROR: error: nvidia-prepare-chunks: `chunks` must be positive, got 0

// CHECK-LABEL: func.func @attention_chunks(
// CHECK-SAME:    memref<?x?x?x64xbf16
// CHECK-SAME:    segment = 64 : i64
// CHECK:         %[[NUMBER:.*]] = "tile.program_id"() {axis = 2 : i64}
// CHECK:         arith.remsi %[[NUMBER]]
// Numbers of rows come first, then what no system needs.
// CHECK:         scf.for
// CHECK:           "tile.store"(%{{.*}}, %{{.*}}) : (tensor<64xf32>, memref<?x?x?xf32
// CHECK:           %[[P:.*]] = "tile.dot"
// CHECK:             tensor.extract %[[P]]
// CHECK:           "tile.store"(%{{.*}}, %{{.*}}) : (tensor<64x64xbf16>, memref<?x?x?x64xbf16
// CHECK:           %[[A:.*]] = "tile.dot"
// CHECK:           %[[T:.*]] = "tile.solve_unit"(%{{.*}}, %{{.*}}) {nvidia.inverse, upper = false}
// CHECK:           %[[PIECES:.*]]:2 = "tile.map"
// CHECK:             tensor.extract %[[T]]
// CHECK:           "tile.store"(%[[PIECES]]#0,
// CHECK:           "tile.store"(%[[PIECES]]#1,
// CHECK:         } {nvidia.once}

// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    gpu.prepared = {columns = [64, 64, 64, -64, -64, -64, -64, -64], elements = ["bf16", "bf16", "bf16", "f32", "f32", "f32", "f32", "f32"], inputs = [0, 1, 2, 3, 5], kernel = "attention_chunks"}
// CHECK:         scf.for
// CHECK-NOT:       tile.solve_unit
// CHECK-NOT:       math.exp2
// CHECK:           %[[RIGHT:.*]]:2 = "tile.map"
// CHECK:           %[[LOW:.*]] = "tile.dot"(%{{.*}}, %[[RIGHT]]#0)
// CHECK:           %[[MIDDLE:.*]] = "tile.dot_add"(%[[LOW]], %[[HIGH:.*]], %[[RIGHT]]#1)
// CHECK:           "tile.dot_add"(%[[MIDDLE]], %[[HIGH]], %[[RIGHT]]#0)
