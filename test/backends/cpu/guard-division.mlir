// The processor traps on x / 0 and on the least integer / -1: such divisors become 1.
// RUN: attn-opt %s -p 'cpu-guard-division' --split-input-file | FileCheck %s

// CHECK-LABEL: func.func @scalars(
// CHECK-SAME:    %[[A:.*]]: index, %[[B:.*]]: index)
func.func @scalars(%a: index, %b: index) -> (index, index) {
  // CHECK-DAG: %[[MINUS:.*]] = arith.constant -1 : index
  // CHECK-DAG: %[[IS_MINUS:.*]] = arith.cmpi eq, %[[B]], %[[MINUS]] : index
  // CHECK-DAG: %[[LEAST:.*]] = arith.constant -9223372036854775808 : index
  // CHECK-DAG: %[[IS_LEAST:.*]] = arith.cmpi eq, %[[A]], %[[LEAST]] : index
  // CHECK-DAG: %[[WRAPS:.*]] = arith.andi %[[IS_MINUS]], %[[IS_LEAST]] : i1
  // CHECK:     %[[IS_ZERO:.*]] = arith.cmpi eq, %[[B]], %{{.*}} : index
  // CHECK:     %[[BAD:.*]] = arith.ori %[[IS_ZERO]], %[[WRAPS]] : i1
  // CHECK:     %[[ONE:.*]] = arith.constant 1 : index
  // CHECK:     %[[SAFE:.*]] = arith.select %[[BAD]], %[[ONE]], %[[B]] : index
  // CHECK:     arith.floordivsi %[[A]], %[[SAFE]] : index
  // CHECK:     arith.select
  // CHECK:     arith.remsi %[[A]], %{{.*}} : index
  %quotient = arith.floordivsi %a, %b : index
  %rest = arith.remsi %a, %b : index
  return %quotient, %rest : index, index
}

// -----

// CHECK-LABEL: func.func @vectors(
func.func @vectors(%a: vector<8xindex>, %b: vector<8xindex>) -> vector<8xindex> {
  // CHECK: arith.constant dense<-1> : vector<8xindex>
  // CHECK: %[[SAFE:.*]] = arith.select {{.*}} : vector<8xi1>, vector<8xindex>
  // CHECK: arith.divsi %{{.*}}, %[[SAFE]]
  %quotient = arith.divsi %a, %b : vector<8xindex>
  return %quotient : vector<8xindex>
}

// -----

// CHECK-LABEL: func.func @constant_divisor(
// CHECK-NOT:     arith.select
func.func @constant_divisor(%a: index) -> index {
  %c3 = arith.constant 3 : index
  %quotient = arith.floordivsi %a, %c3 : index
  return %quotient : index
}
