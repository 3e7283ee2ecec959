// With `whole`, blocks that the mask keeps are a loop of whole tiles with static types; what is left has a loop of its own.
// RUN: attn-opt %inputs/causal-softmax.mlir -p 'attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=128 block-kv=64 whole=true},canonicalize,cse' | FileCheck %s --check-prefix=CAUSAL
// RUN: attn-opt %inputs/plain-softmax.mlir -p 'attn-simplify,attn-online-rewrite,attn-tile{block-q=128 block-kv=64 whole=true},canonicalize,cse' | FileCheck %s --check-prefix=FULL
// RUN: attn-opt %inputs/dilated.mlir -p 'attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=128 block-kv=64 whole=true},canonicalize,cse' | FileCheck %s --check-prefix=PARTIAL

// Keys before the diagonal's blocks; the mask is not evaluated there, and no count is computed.
// CAUSAL:      scf.for %[[J:[a-z0-9_]+]] = %c0 to %[[END:[a-z0-9_]+]] step %c64
// CAUSAL-NOT:  arith.cmpi
// CAUSAL:      "tile.load"(%k, {{.*}}, %[[J]], %c64) {{.*}} -> tensor<64x64xf32>
// CAUSAL:      "tile.map"(%c128, %c64)
// CAUSAL:      scf.for %[[J2:[a-z0-9_]+]] = %[[END]] to
// CAUSAL:      arith.minsi {{.*}}, %c64
// CAUSAL:      "tile.load"(%k, {{.*}} -> tensor<?x64xf32>
// CAUSAL:      arith.cmpi sge

// Without a mask: whole blocks, and the tail.
// FULL:        %[[BLOCKS:[a-z0-9_]+]] = arith.divsi %[[LENGTH:[a-z0-9_]+]], %c64
// FULL:        %[[WHOLE:[a-z0-9_]+]] = arith.muli %[[BLOCKS]], %c64
// FULL:        scf.for {{.*}} = %c0 to %[[WHOLE]] step %c64
// FULL:        "tile.load"(%k, {{.*}} -> tensor<64x64xf32>
// FULL:        scf.for {{.*}} = %[[WHOLE]] to %[[LENGTH]] step %c64
// FULL:        "tile.load"(%k, {{.*}} -> tensor<?x64xf32>

// Where no block is present as a whole there is one loop.
// PARTIAL:     scf.for
// PARTIAL:     "tile.load"(%k, {{.*}} -> tensor<?x64xf32>
// PARTIAL-NOT: scf.for
