// RUN: not attn-opt %inputs/online-causal-softmax.mlir -p 'attn-tile,cpu-lower-tiles' 2>&1 | FileCheck %s
// CHECK: cpu-lower-tiles: the kernel is not scheduled; run tile-schedule{target=cpu} first
