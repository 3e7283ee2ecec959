// Gradients of one tensor that several ops read are added by the host, behind its calls.
// RUN: attn-opt %s -p attn-outline | FileCheck %s

// CHECK:       func.func @host(%[[A:[a-z0-9]+]]: tensor<?x?x?xf32>, %[[B:[a-z0-9]+]]: tensor<?x?x?xf32>, %[[TABLE:[a-z0-9]+]]: tensor<?xf32>)
// CHECK-NEXT:    %[[X:[a-z0-9]+]] = call @host_0_elements(%[[A]], %[[TABLE]])
// CHECK-NEXT:    %[[Y:[a-z0-9]+]] = call @host_1_elements(%[[B]], %[[TABLE]])
// CHECK-NEXT:    %[[SUM:[a-z0-9]+]] = arith.addf %[[X]], %[[Y]] : tensor<?xf32>
// CHECK-NEXT:    %[[TWICE:[a-z0-9]+]] = arith.addf %[[SUM]], %[[X]] : tensor<?xf32>
// CHECK-NEXT:    return %[[SUM]], %[[TWICE]]
!rows = tensor<?x?x?xf32>
func.func @host(%a: !rows, %b: !rows, %table: tensor<?xf32>) -> (tensor<?xf32>, tensor<?xf32>) {
  %u = "attn.elements"(%a) ({
    "attn.element"() ({
    ^bb0(%i: index, %j: index, %k: index):
      %x = tensor.extract %a[%i, %j, %k] : !rows
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : (!rows) -> none
  %x = "attn.scatter"(%u, %table) ({
  ^bb0(%i: index, %j: index, %k: index):
    "attn.yield"(%j) : (index) -> ()
  }) {weight = 0} : (none, tensor<?xf32>) -> tensor<?xf32>
  %w = "attn.elements"(%b) ({
    "attn.element"() ({
    ^bb0(%i: index, %j: index, %k: index):
      %x1 = tensor.extract %b[%i, %j, %k] : !rows
      "attn.yield"(%x1) : (f32) -> ()
    }) : () -> ()
  }) : (!rows) -> none
  %y = "attn.scatter"(%w, %table) ({
  ^bb0(%i: index, %j: index, %k: index):
    "attn.yield"(%k) : (index) -> ()
  }) {weight = 0} : (none, tensor<?xf32>) -> tensor<?xf32>
  %sum = arith.addf %x, %y : tensor<?xf32>
  %twice = arith.addf %sum, %x : tensor<?xf32>
  return %sum, %twice : tensor<?xf32>, tensor<?xf32>
}
