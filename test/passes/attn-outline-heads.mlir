// With `join-heads`, what a delta rule's gradients of single heads are made of belongs to the sum over heads, and one kernel reads it.
// RUN: attn-opt %inputs/linear/gated-delta-half.mlir -p 'attn-differentiate{functions=bwd apart=true only=true},attn-outline{gradients-apart=true join-heads=true}' | FileCheck %s
// RUN: attn-opt %inputs/linear/gated-delta-half.mlir -p 'attn-differentiate{functions=bwd apart=true only=true},attn-outline{gradients-apart=true join-heads=true keep-hosts=false},attn-chunk-rewrite,attn-tile{block-q=16},canonicalize,cse' | FileCheck %s --check-prefix=TILE
// RUN: attn-opt %inputs/linear/gated-delta-half.mlir -p 'attn-differentiate{functions=bwd apart=true only=true},attn-outline{gradients-apart=true}' | FileCheck %s --check-prefix=APART

// APART:       func.func private @attention_bwd_[[N:[0-9]+]]_elements(%k: {{.*}} -> tensor<?x?x?x64xbf16>
// APART:       func.func private @{{.*}}_head_sum({{.*}}same =

// CHECK:       func.func private @attention_bwd_[[N:[0-9]+]]_head_sum(%k: {{[^)]*}}, %de: {{[^)]*}}, %dk: {{[^)]*}}, %dw: {{[^)]*}}) -> tensor<?x?x?x64xbf16>
// CHECK-NOT:     same =
// CHECK:         %[[MADE:.*]] = "attn.elements"(%de)
// CHECK:         %[[ALL:.*]] = "attn.collect"(%[[MADE]])
// CHECK:         %[[SUM:.*]] = "attn.head_sum"(%[[ALL]], %k)
// CHECK:         return %[[SUM]]

// TILE:        func.func @attention_bwd_{{[0-9]+}}_head_sum(%{{.*}}: memref<?x?x?x64xbf16, {{.*}}%{{.*}}: memref<?x?x?xf32
// TILE:          scf.for
// TILE:            %[[DE:.*]] = "tile.load"
// TILE:            %[[DK:.*]] = "tile.load"
// TILE:            %[[DW:.*]] = "tile.load"
// TILE:            "tile.map"
// TILE:              tensor.extract %[[DE]]
// TILE-DAG:          tensor.extract %[[DK]]
// TILE-DAG:          tensor.extract %[[DW]]
// TILE:              memref.load
// TILE:          "tile.store"

// They agree with differences of the function.
// RUN: attn-run %inputs/linear/gated-delta-half.mlir --q-len 7 -p 'attn-differentiate{apart=true interval=4},attn-outline{gradients-apart=true join-heads=true},attn-chunk-rewrite{chunk=4}' | FileCheck %s --check-prefix=SAME
// SAME: PASS
