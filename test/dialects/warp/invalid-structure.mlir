// What kernels and roles demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

// expected-error @below {{'warp.kernel' has roles}}
"warp.kernel"() ({
  ^bb0:
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()

// -----

// expected-error @below {{'warp.kernel' launches with 86016 registers, there are 65536}}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "r", warpgroups = 4, warps = 4, registers = 24} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()

// -----

// expected-error @below {{'warp.kernel' gives its roles 30720 registers, more than the 21504 of its launch: it would hang}}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "r", warpgroups = 1, warps = 4, registers = 240} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()

// -----

// expected-error @below {{'warp.kernel' has 16384 bytes of shared memory, there are 8192}}
"warp.kernel"() ({
  %a = "warp.alloc"() : () -> memref<2x64x64xf16, #warp.shared<128 : i64>>
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "r", warpgroups = 1, warps = 4, registers = 168} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 8192} : () -> ()

// -----

// expected-error @below {{'warp.role' stands in 'warp.kernel'}}
"warp.role"() ({
^bb0(%w: index):
}) {sym_name = "r", warpgroups = 1, warps = 4, registers = 168} : () -> ()

// -----

"warp.kernel"() ({
  // expected-error @below {{'warp.role' has warpgroups, of 1 to 4 warps, got 1 of 5}}
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "r", warpgroups = 1, warps = 5, registers = 168} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()

// -----

"warp.kernel"() ({
  // expected-error @below {{'warp.role' has a multiple of 8 registers from 24 on, got 20}}
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "r", warpgroups = 1, warps = 4, registers = 20} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()

// -----

"warp.kernel"() ({
  // expected-error @below {{'warp.role' has a region that takes the warpgroup, an index}}
  "warp.role"() ({
  ^bb0:
  }) {sym_name = "r", warpgroups = 1, warps = 4, registers = 168} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()

// -----

// expected-error @below {{'warp.elect' stands in 'warp.role' and takes no arguments}}
"warp.elect"() ({
^bb0:
}) : () -> ()

// -----

%x = ub.poison : f32
// expected-error @below {{'warp.each_warp' makes fragments, got (f32)}}
%r = "warp.each_warp"() ({
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
}) {resultSegmentSizes = array<i32: 1, 0, 0>} : () -> f32

// -----

%x = ub.poison : tensor<64xf32, #warp.layout<"wgmma", "rows">>
%i = ub.poison : index
// expected-error @below {{'warp.each_warp' holds what one warp can do, got warp.named_sync}}
%r = "warp.each_warp"() ({
  "warp.named_sync"(%i) {threads = 128} : (index) -> ()
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<64xf32, #warp.layout<"wgmma", "rows">>) -> ()
}) {resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>

// -----

%x = ub.poison : tensor<64xf32, #warp.layout<"wgmma", "rows">>
%y = ub.poison : tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
// expected-error @below {{'warp.each_warp' takes nothing and ends in a 'warp.yield' of (tensor<64xf32, #warp.layout<"wgmma", "rows">>)}}
%r = "warp.each_warp"() ({
  "warp.yield"(%y) {operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> ()
}) {resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>

// -----

%c = ub.poison : memref<?xf32>
%i = ub.poison : index
// expected-error @below {{'warp.next_tile' counts in a memref<?xi32> of global memory, got memref<?xf32>}}
%n = "warp.next_tile"(%c, %i) : (memref<?xf32>, index) -> index

// -----

%c = ub.poison : memref<?xi32>
%i = ub.poison : index
// expected-error @below {{'warp.next_tile' is for one thread: it stands in 'warp.elect'}}
%n = "warp.next_tile"(%c, %i) : (memref<?xi32>, index) -> index

// -----

"warp.kernel"() ({
  // expected-error @below {{'warp.role' shares the warpgroup of a role before it, and there is none}}
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "r", warpgroups = 1, warps = 1, registers = 168, first_warp = 1} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()

// -----

"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "p", warpgroups = 1, warps = 1, registers = 168} : () -> ()
  // expected-error @below {{'warp.role' shares the only warpgroup of a role with as many registers}}
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "r", warpgroups = 1, warps = 1, registers = 24, first_warp = 1} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()

// -----

"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "p", warpgroups = 1, warps = 1, registers = 168} : () -> ()
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "a", warpgroups = 1, warps = 2, registers = 168, first_warp = 1} : () -> ()
  // expected-error @below {{'warp.role' has warps 2 to 3, those from 3 to 3 are free}}
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "r", warpgroups = 2, warps = 1, registers = 168, first_warp = 2} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()
