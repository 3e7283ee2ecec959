// An operation whose location is a name, or unknown, is reported at its place in the file; the name is told, too.
// RUN: not attn-opt %s --split-input-file 2>&1 | FileCheck %s
// RUN: echo '"attn.row"() ({}) : () -> () loc("the row")' | not attn-run - 2>&1 | FileCheck %s --check-prefix=NAMED
// RUN: echo '"attn.row"() ({}) : () -> () loc("the row")' | not attn-translate - --to llvm 2>&1 | FileCheck %s --check-prefix=NAMED

// CHECK: {{^.*}}locations.mlir:10:3: error: 'attn.row' belongs inside attn.attention (at "the row")
// NAMED: <stdin>:1:1: error: 'attn.row' belongs inside attn.attention (at "the row")
#where = loc("a name")
func.func @named() {
  "attn.row"() ({}) : () -> () loc("the row")
  return loc(#where)
}

// -----

// CHECK: locations.mlir:18:3: error: 'attn.row' belongs inside attn.attention
func.func @unknown() {
  "attn.row"() ({}) : () -> () loc(unknown)
  return loc(callsite("a" at "b ("))
}

// -----

// CHECK: locations.mlir:27:8: error: 'attn.score' has no custom form; write it in quotes, with its operands in brackets: "attn.score"(...)
// A name in a string or of an attribute is none: "= attn.row".
func.func @custom(%s: f32) attributes {attn.odd = "= attn.row", tile.odd} {
  %d = attn.score %s : f32
  return
}

// -----

// CHECK: locations.mlir:35:20: error: an array has elements of i1, i8, i16, i32, i64, f32 or f64 here, not i128
func.func @array() attributes {
  odd = 1, sizes = array<i128: 1>
} { return }
