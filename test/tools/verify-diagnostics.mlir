// Expectations are met by errors of the same line and text; below skips other expectations.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

// expected-error @below {{belongs inside attn.attention}}
"attn.row"() ({}) : () -> ()

// -----

"attn.row"() ({}) : () -> () // expected-error {{belongs inside}}

// -----

"attn.row"() ({}) : () -> ()
// expected-error @above {{belongs inside}}

// -----

// expected-error @+2 {{belongs inside}}

"attn.row"() ({}) : () -> ()

// -----

// expected-error @unknown {{belongs inside}}

func.func @nested() {
  "attn.row"() ({}) : () -> ()
  return
}

// -----

// expected-note @below {{see existing symbol definition here}}
func.func @twice() { return }
// expected-error @below {{redefinition of symbol named 'twice'}}
func.func @twice() { return }

// -----

func.func @without_expectation() {
  return
}
