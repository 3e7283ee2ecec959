// IR dumps and timings go to standard error, in the order of the passes, the result to standard output or a file.
// RUN: attn-opt %s -p 'cse,func.func(canonicalize)' --print-ir-after-all -o %t.mlir 2>&1 | FileCheck %s
// RUN: FileCheck %s --check-prefix=RESULT < %t.mlir
// RUN: attn-opt %s -p 'cse,canonicalize,symbol-dce' --print-ir-after=canonicalize -o %t.mlir 2>&1 | FileCheck %s --check-prefix=SINGLE
// RUN: attn-opt %s -p 'cse,canonicalize' --timing -o %t.mlir 2>&1 | FileCheck %s --check-prefix=TIME
// RUN: attn-opt %s --mlir-print-op-generic | FileCheck %s --check-prefix=GENERIC
// RUN: attn-opt %s --mlir-print-debuginfo | FileCheck %s --check-prefix=LOCATIONS

// CHECK:      IR Dump After cse
// CHECK:      %[[ONE:.*]] = arith.constant 1 : index
// CHECK-NEXT: %[[TWO:.*]] = arith.addi %[[ONE]], %[[ONE]]
// CHECK-NEXT: arith.addi %[[TWO]], %[[TWO]]
// CHECK:      IR Dump After func.func(canonicalize)
// CHECK:      arith.constant 4 : index
// RESULT-NOT: arith.addi
// RESULT:     arith.constant 4 : index
// SINGLE-NOT: IR Dump After cse
// SINGLE:     IR Dump After canonicalize
// SINGLE-NOT: IR Dump After symbol-dce
// TIME:       Time per pass
// TIME-NEXT:  ms {{.*}} cse
// TIME-NEXT:  ms {{.*}} canonicalize
// TIME-NEXT:  ms  total
// GENERIC:    "func.func"() <{
// LOCATIONS:  loc("{{.*}}print-ir.mlir":26:
func.func @four() -> index {
  %one = arith.constant 1 : index
  %two = arith.addi %one, %one : index
  %also_two = arith.addi %one, %one : index
  %four = arith.addi %two, %also_two : index
  return %four : index
}
