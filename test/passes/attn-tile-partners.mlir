// A mod that reads another channel is a map that reads the loaded tile twice; the tile is not changed in place.
// RUN: attn-opt %inputs/rotary.mlir -p 'attn-online-rewrite,attn-tile,canonicalize,cse' | FileCheck %s
// RUN: attn-opt %inputs/rotary.mlir -p 'attn-online-rewrite,attn-tile,canonicalize,cse,tile-schedule{target=cpu}' | FileCheck %s --check-prefix=CPU

// CHECK:       %[[Q:.*]] = "tile.load"(%q
// CHECK:       %[[QUERY:.*]] = "tile.map"
// CHECK-NEXT:  ^bb0(%[[I:.*]]: index, %[[D:.*]]: index):
// CHECK:         %[[OTHER:.*]] = arith.select
// CHECK:         tensor.extract %[[Q]][%[[I]], %[[D]]]
// CHECK:         tensor.extract %[[Q]][%[[I]], %[[OTHER]]]
// CHECK:       scf.for
// CHECK:         %[[K:.*]] = "tile.load"(%k
// CHECK:         %[[KEY:.*]] = "tile.map"
// CHECK-NEXT:    ^bb0(%[[J:.*]]: index, %[[C:.*]]: index):
// CHECK:           %[[NEXT:.*]] = arith.xori %[[C]]
// CHECK:           tensor.extract %[[K]][%[[J]], %[[C]]]
// CHECK:         "tile.dot"(%[[QUERY]], %[[KEY]])

// CPU:         "tile.load"(%q{{.*}}) {buffer = [0]
// CPU:         "tile.map"
// CPU:         buffer = [1]
