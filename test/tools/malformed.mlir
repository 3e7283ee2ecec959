// Files that cannot be read, written or decoded, and text that would overflow the parser's stack.
// RUN: not attn-opt %t.does-not-exist 2>&1 | FileCheck %s --check-prefix=MISSING
// RUN: not attn-opt %S 2>&1 | FileCheck %s --check-prefix=FOLDER
// RUN: not attn-opt %inputs/online-causal-softmax.mlir -o %t.no-folder/x.mlir 2>&1 | FileCheck %s --check-prefix=UNWRITABLE
// RUN: %PYTHON -c "import sys; sys.stdout.buffer.write(b'module {\n  \xff}')" | not attn-opt 2>&1 | FileCheck %s --check-prefix=BYTES
// RUN: %PYTHON -c "print('module {' * 100000)" | not attn-opt 2>&1 | FileCheck %s --check-prefix=DEEP
// RUN: %PYTHON -c "print('#m = affine_map<(d) -> (' + '-' * 100000 + 'd)>')" | not attn-opt - 2>&1 | FileCheck %s --check-prefix=MINUS
// RUN: not attn-opt %s -p 2>&1 | FileCheck %s --check-prefix=USAGE
// RUN: not attn-opt %s 2>&1 | FileCheck %s

// MISSING:    does-not-exist: error: cannot read the file: No such file or directory
// FOLDER:     error: cannot read the file: Is a directory
// UNWRITABLE: error: cannot write the file: No such file or directory
// BYTES:      <stdin>:2:3: error: not UTF-8 text: byte 0xff
// DEEP:       <stdin>:1:{{[0-9]+}}: error: brackets are nested more than 256 deep
// MINUS:      <stdin>:1:{{[0-9]+}}: error: more than 63 minus signs in a row
// USAGE:      attn-opt: error: argument -p/--pass-pipeline: expected one argument
// CHECK:      malformed.mlir:19:24: error: custom op 'nothing' is unknown
func.func @unknown() { nothing }
