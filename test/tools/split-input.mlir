// Each part is a module of its own, keeps its line numbers, and fails alone.
// RUN: not attn-opt %s --split-input-file 2>%t.err | FileCheck %s
// RUN: FileCheck %s --check-prefix=ERROR < %t.err

// CHECK:      func.func @first
// CHECK:      // -----
// CHECK-NOT:  @second
// CHECK:      func.func @third
func.func @first() {
  return
}

// -----

// ERROR:     split-input.mlir:17:3: error: 'attn.yield' has no successors
func.func @second() {
  "attn.yield"()[^bb1] : () -> ()
^bb1:
  return
}

// -----

func.func @third() {
  return
}

// -----

// ERROR:     split-input.mlir:31:{{[0-9]+}}: error:
func.func @fourth(
