// The scans for dk and dv sum up the same states: with `share-states` they are one kernel, which updates the state once for both.
// RUN: attn-opt %inputs/linear/simple-gla.mlir -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-outline{share-states=true}' | FileCheck %s
// RUN: attn-opt %inputs/linear/simple-gla.mlir -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-outline{share-states=true keep-hosts=false},attn-chunk-rewrite{chunk=32},attn-tile,canonicalize,cse' | FileCheck %s --check-prefix=TILE
// RUN: attn-opt %inputs/linear/simple-gla.mlir -p 'attn-differentiate{functions=bwd wrt=q+k+v+arg3 only=true crossing=true interval=64},attn-outline{share-states=true keep-hosts=false},attn-chunk-rewrite{chunk=32}' | FileCheck %s --check-prefix=CHUNKS
// RUN: attn-opt %inputs/linear/row-factors.mlir -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-outline{share-states=true keep-hosts=false},attn-chunk-rewrite{chunk=32},attn-tile,canonicalize,cse' | FileCheck %s --check-prefix=ROWS
// RUN: attn-opt %inputs/linear/gated-delta.mlir -p 'attn-differentiate{functions=bwd only=true},attn-outline{gradients-apart=true}' | FileCheck %s --check-prefix=APART

// The gradient of the decays belongs to the scan for dk, or is a kernel of its own.
// APART:       func.func private @attention_bwd_{{[0-9]+}}_decay_gradient(
// APART-NOT:     attn.linear_attention
// APART:         "attn.decay_gradient"

// CHECK:       func.func private @attention_bwd_1_linear_attention(
// CHECK:         %[[DK:.*]] = "attn.linear_attention"
// CHECK:         direction = "backward"{{.*}} state = "vk"
// CHECK:         %[[DV:.*]] = "attn.linear_attention"
// CHECK:         direction = "backward"{{.*}} state = "kv"
// CHECK:         return %[[DK]], %[[DV]]
// CHECK-LABEL: func.func @attention_bwd(
// CHECK:         call @attention_bwd_1_linear_attention({{.*}})

// TILE-LABEL:  func.func @attention_bwd_1_linear_attention(
// TILE:          scf.for {{.*}} iter_args(%[[STATE:.*]] = %{{.*}}) -> (tensor<16x8xf32>)
// TILE:            %[[DK_OF_STATE:.*]] = "tile.dot"(%{{.*}}, %[[STATE]]) {transpose_b = true}
// TILE:            %[[DK:.*]] = "tile.dot_rescale"(%[[DK_OF_STATE]], %[[LEAVE:.*]], %{{.*}}, %{{.*}})
// TILE:            "tile.store"(%[[DK]], %o,
// TILE:            %[[DV_OF_STATE:.*]] = "tile.dot"(%{{.*}}, %[[STATE]]) {transpose_b = false}
// TILE:            %[[DV:.*]] = "tile.dot_rescale"(%[[DV_OF_STATE]], %[[LEAVE]], %{{.*}}, %{{.*}})
// TILE:            "tile.store"(%[[DV]], %o_beside,
// TILE:            %[[NEXT:.*]] = "tile.dot_rescale"(%[[STATE]]
// TILE-NEXT:       scf.yield %[[NEXT]]

// Also where rows have factors: those of what enters the state are the same, those of the rows that are made are each scan's own.
// ROWS-LABEL:  func.func @attention_bwd_1_linear_attention(
// ROWS:          scf.for
// ROWS:            %[[OF_V:.*]] = "tile.map"
// ROWS:              memref.load %decay[
// ROWS:            %[[OF_Q:.*]] = "tile.map"
// ROWS:              memref.load %arg4[
// ROWS:            "tile.dot_rescale"(
// ROWS:            "tile.store"({{.*}}, %o,
// ROWS:            %[[OF_K:.*]] = "tile.map"
// ROWS:              memref.load %arg4[
// ROWS:              arith.divf
// ROWS:            tensor.extract %[[OF_K]][%i]
// ROWS:            tensor.extract %[[OF_K]][%i]
// ROWS:            tensor.extract %[[OF_Q]][%j]
// ROWS:            "tile.store"({{.*}}, %o_beside,

// Both have the chunks of the scan that adds up the gradient of the decays.
// CHUNKS-LABEL: func.func private @attention_bwd_1_linear_attention(
// CHUNKS:         chunk = 64 : i64, crossing, direction = "backward"
// CHUNKS:         chunk = 64 : i64, direction = "backward"
