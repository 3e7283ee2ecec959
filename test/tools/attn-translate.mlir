// Any stage goes in; what a backend makes of it comes out.
// RUN: attn-translate %inputs/causal-softmax.mlir --to llvm | FileCheck %s
// RUN: attn-opt %inputs/causal-softmax.mlir -p 'attn-online-rewrite' | attn-translate --to cpu-kernel | FileCheck %s --check-prefix=KERNEL
// RUN: attn-translate %inputs/causal-softmax.mlir --to object -o %t.o
// RUN: %PYTHON -c "assert open(r'%t.o', 'rb').read(4) == bytes([127]) + b'ELF'"
// RUN: not attn-translate %s --to llvm 2>&1 | FileCheck %s --check-prefix=BAD
// RUN: not attn-translate nothing.mlir --to llvm 2>&1 | FileCheck %s --check-prefix=MISSING
// RUN: not attn-translate %inputs/causal-softmax.mlir --to abacus 2>&1 | FileCheck %s --check-prefix=FORMAT
// RUN: not attn-translate %inputs/causal-softmax.mlir --to cuda 2>&1 | FileCheck %s --check-prefix=PASS

// CHECK:       define void @attention(ptr %0)
// CHECK:         atomicrmw add ptr %0, i64 1 monotonic
// CHECK:         fmuladd

// KERNEL:      tile.target = "cpu"

// BAD:         attn-translate.mlir:{{[0-9]+}}:{{[0-9]+}}: error:
// MISSING:     nothing.mlir: error: cannot read the file
// PASS:        causal-softmax.mlir:1:1: error: tile-schedule: no code generator makes this kernel
// FORMAT:      invalid choice: 'abacus'
func.func @broken(
