// Gradients of a delta rule are scans: what is written once more, dq, dx from the far end (which removes e), de, and dk of two writers.
// RUN: attn-opt %inputs/linear/gated-delta.mlir -p 'attn-differentiate{functions=bwd crossing=true interval=64}' | FileCheck %s

// CHECK-LABEL: func.func @attention_bwd(
// CHECK:         %[[U:.*]] = "attn.linear_attention"(%{{.*}}) ({
// CHECK:           "attn.erase"(%{{.*}}) ({
// CHECK:         }) {{{.*}}direction = "forward"{{.*}}output = "values"
// CHECK:         %[[DQ:.*]]:3 = "attn.linear_attention"(%{{.*}}, %[[U]], %{{.*}}) ({
// CHECK:         }) {{{.*}}crossing{{.*}}outputs = ["products", "states"]{{.*}}state = "vk"
// CHECK:         %[[E:.*]] = "attn.collect"
// CHECK:         %[[DX:.*]]:2 = "attn.linear_attention"(%{{.*}}) ({
// CHECK:           "attn.erase"(%{{.*}}, %[[E]]) ({
// CHECK:           }) {reads = "written"}
// CHECK:         }) {{{.*}}direction = "backward"{{.*}}output = "values", outputs = ["final_state"]
// CHECK:         "attn.linear_attention"(%[[DX]]#0, %[[U]],
// CHECK:         }) {{{.*}}direction = "forward"{{.*}}output = "decayed"
// CHECK:         "attn.linear_attention"(%[[U]],
// CHECK:           "attn.write"(%[[DX]]#0, %[[E]])
// CHECK:         }) {{{.*}}direction = "backward"{{.*}}output = "written"

// They agree with differences of the function, in chunks, too: heads and channels, read before the update, another key that is removed.
// RUN: attn-run %inputs/linear/gated-delta.mlir %inputs/linear/kda.mlir %inputs/linear/removed-key.mlir --q-len 7 -p 'attn-differentiate{crossing=true interval=4},attn-simplify,attn-chunk-rewrite{chunk=4}' | FileCheck %s --check-prefix=SAME
// SAME-COUNT-3: PASS

// No target takes differences: intervals are chunks, of 32 positions, or of 16 where channels have decays. There are no segments.
// RUN: attn-opt %inputs/linear/gated-delta.mlir -p 'attn-differentiate{functions=bwd}' | FileCheck %s --check-prefix=GPU
// GPU-COUNT-2: crossing, {{.*}}interval = 32 : i64
// RUN: attn-opt %inputs/linear/kda.mlir -p 'attn-differentiate{functions=bwd}' | FileCheck %s --check-prefix=KDA
// KDA-COUNT-2: crossing, {{.*}}interval = 16 : i64
// RUN: not attn-opt %inputs/linear/delta-backward.mlir -p 'attn-differentiate{crossing=true}' 2>&1 | FileCheck %s --check-prefix=FORM
// FORM: error: attn-differentiate: differentiates what is read 'after' or 'decayed', of one writer
