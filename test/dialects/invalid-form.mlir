// Ops that lack what they are declared with, or have too much; checked before everything else.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

// expected-error @below {{'attn.reduce' has 1 operand, got 0}}
"attn.reduce"() {kind = "max"} : () -> ()

// -----

// expected-error @below {{'tile.program_id' has 1 result, got 2}}
%r:2 = "tile.program_id"() {axis = 0} : () -> (index, index)

// -----

// expected-error @below {{'attn.range' has at least 1 operand, got 0}}
%r:2 = "attn.range"() : () -> (index, index)

// -----

%x = ub.poison : f32
// expected-error @below {{'attn.reduce' needs its attribute `kind`}}
%m = "attn.reduce"(%x) : (f32) -> f32

// -----

%x = ub.poison : f32
// expected-error @below {{'attn.reduce' takes `kind` as a string, got 1 : i64}}
%m = "attn.reduce"(%x) {kind = 1} : (f32) -> f32

// -----

// expected-error @below {{'attn.row' has 1 region, got 0}}
"attn.row"() : () -> ()

// -----

%x = ub.poison : f32
// expected-error @below {{'tile.yield' needs `operandSegmentSizes` to split its 1 operand into tiles, rows}}
"tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 1>} : (f32) -> ()

// -----

// expected-error @below {{'tile.yield' needs `operandSegmentSizes` to split its 0 operands into tiles, rows}}
"tile.yield"() {operandSegmentSizes = "none"} : () -> ()

// -----

func.func @successor() {
  // expected-error @below {{'attn.yield' has no successors}}
  "attn.yield"()[^bb1] : () -> ()
^bb1:
  return
}
