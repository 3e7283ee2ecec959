// What is missing fails, and so does what nobody expected; each is named with its place.
// RUN: not attn-opt %s --split-input-file --verify-diagnostics 2>&1 | FileCheck %s

// CHECK: fails.mlir:6:1: error: expected error "not there" was not produced
// expected-error @below {{not there}}
func.func @missing() { return }

// -----

// CHECK: fails.mlir:11:1: error: unexpected error: 'attn.row' belongs inside attn.attention
"attn.row"() ({}) : () -> ()

// -----

// CHECK: fails.mlir:18:1: error: expected error "belongs outside" was not produced
// CHECK: fails.mlir:18:1: error: unexpected error: 'attn.row' belongs inside attn.attention
// expected-error @below {{belongs outside}}
"attn.row"() ({}) : () -> ()

// -----

// CHECK: fails.mlir:24:1: error: expected error "belongs inside" was not produced
// CHECK: fails.mlir:25:1: error: unexpected error: 'attn.row' belongs inside attn.attention
// expected-error {{belongs inside}}
"attn.row"() ({}) : () -> ()

// -----

// CHECK: fails.mlir:32:1: error: expected note "belongs inside" was not produced
// CHECK: fails.mlir:32:1: error: unexpected error: 'attn.row' belongs inside attn.attention
// expected-note @below {{belongs inside}}
"attn.row"() ({}) : () -> ()

// -----

// CHECK: fails.mlir:37:1: error: malformed expectation
// expected-error @below {nothing}
func.func @malformed() { return }
