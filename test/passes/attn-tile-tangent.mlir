// A kernel of several products, weights and outputs: queries are loaded once, keys and values once a block.
// The kernel's outputs are what the function returns, in that order.
// RUN: %PYTHON -c "print(open(r'%inputs/derivatives/softmax-tangent.mlir').read().replace('return %o, %o_dot', 'return %o_dot, %o'))" > %t.mlir
// RUN: attn-opt %t.mlir -p 'attn-online-rewrite,attn-tile{block-q=16 block-kv=32},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: func.func @attention_jvp(
// CHECK-SAME:    %q: memref{{.*}}, %k: memref{{.*}}, %v: memref{{.*}}, %arg3: {{.*}}, %arg4: {{.*}}, %arg5: {{.*}}, %o1: memref{{.*}}, %o: memref
// CHECK:       %[[Q:[0-9]+]] = "tile.load"(%q,
// CHECK-NEXT:  %[[Q_DOT:[0-9]+]] = "tile.load"(%arg3,
// CHECK:       scf.for
// CHECK:         %[[K:[0-9]+]] = "tile.load"(%k,
// CHECK-NEXT:    "tile.dot"(%[[Q]], %[[K]])
// CHECK-NEXT:    "tile.dot"(%[[Q_DOT]], %[[K]])
// CHECK-NEXT:    %[[K_DOT:[0-9]+]] = "tile.load"(%arg4,
// CHECK-NEXT:    "tile.dot"(%[[Q]], %[[K_DOT]])
// CHECK:         %[[ROW:[0-9]+]]:4 = "tile.map"(%c16)
// CHECK:         %[[E:[0-9]+]]:4 = "tile.map"(%c16, %{{[0-9]+}})
// CHECK:           math.exp
// CHECK:         {reductions = ["sum", "sum"]
// CHECK:         %[[V:[0-9]+]] = "tile.load"(%v,
// CHECK-NEXT:    "tile.dot_rescale"(%{{.*}}, %{{.*}}, %[[E]]#0, %[[V]])
// CHECK-NEXT:    "tile.dot_rescale"(%{{.*}}, %[[ROW]]#1, %[[E]]#1, %[[V]])
// CHECK-NEXT:    %[[V_DOT:[0-9]+]] = "tile.load"(%arg5,
// CHECK-NEXT:    "tile.dot_rescale"(%{{.*}}, %{{.*}}, %[[E]]#0, %[[V_DOT]])
// CHECK-NEXT:    scf.yield
// CHECK:       "tile.store"(%{{.*}}, %o1,
// CHECK:       "tile.store"(%{{.*}}, %o,
