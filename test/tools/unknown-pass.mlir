// What is wrong with a pipeline is said in terms of passes and options, with what was probably meant; exit code 1.
// RUN: not attn-opt %s -p attn-tyle 2>&1 | FileCheck %s --check-prefix=PASS
// RUN: not attn-opt %s --attn-tyle 2>&1 | FileCheck %s --check-prefix=FLAG
// RUN: not attn-opt %s --no-such-flag 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// RUN: not attn-opt %s -p 'func.func(canonicalise)' 2>&1 | FileCheck %s --check-prefix=UPSTREAM
// RUN: not attn-opt %s -p 'attn-tile-rows{blok-q=32}' 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: not attn-opt %s -p 'attn-tile{block-q=many}' 2>&1 | FileCheck %s --check-prefix=VALUE
// RUN: not attn-opt %s -p 'attn-tile{block-q}' 2>&1 | FileCheck %s --check-prefix=NOVALUE
// RUN: not attn-opt %s -p 'attn-tile{block-q=32 block-q=64}' 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: not attn-opt %s -p 'canonicalize{no-such=1}' 2>&1 | FileCheck %s --check-prefix=UPOPTION
// RUN: not attn-opt %s -p 'func.func(attn-tile)' 2>&1 | FileCheck %s --check-prefix=NESTED
// RUN: not attn-opt %s -p 'cse,,cse' 2>&1 | FileCheck %s --check-prefix=EMPTY
// RUN: not attn-opt %s -p 'func.func(cse' 2>&1 | FileCheck %s --check-prefix=OPEN
// RUN: not attn-opt %s -p 'cse)' 2>&1 | FileCheck %s --check-prefix=CLOSED
// RUN: not attn-opt %s -p 'attn-pipeline{blok-q=32}' 2>&1 | FileCheck %s --check-prefix=NAMED
// RUN: not attn-opt %s -p cse --print-ir-after=attn-tile 2>&1 | FileCheck %s --check-prefix=AFTER

// PASS:     attn-opt: error: unknown pass 'attn-tyle'; did you mean 'attn-tile'?
// FLAG:     attn-opt: error: unknown option or pass '--attn-tyle'; did you mean 'attn-tile'?
// UNKNOWN:  attn-opt: error: unknown option or pass '--no-such-flag'
// UPSTREAM: attn-opt: error: unknown pass 'canonicalise'; did you mean 'canonicalize'?
// OPTION:   attn-opt: error: pass 'attn-tile-rows' has no option 'blok-q' (it has: block-q, block-kv, whole); did you mean 'block-q'?
// VALUE:    attn-opt: error: option 'block-q' of pass 'attn-tile-rows' takes an integer, got 'many'
// NOVALUE:  attn-opt: error: option 'block-q' of pass 'attn-tile-rows' needs a value
// TWICE:    attn-opt: error: pass 'attn-tile-rows' got the option 'block-q' twice
// UPOPTION: attn-opt: error: pass 'canonicalize' has no option 'no-such'
// NESTED:   attn-opt: error: 'attn-tile' works on modules, it cannot stand inside 'func.func(...)'
// EMPTY:    attn-opt: error: expected a pass between the commas of 'cse,,cse'
// OPEN:     attn-opt: error: '(' is never closed in 'func.func(cse'
// CLOSED:   attn-opt: error: ')' without its opening bracket in 'cse)'
// NAMED:    attn-opt: error: no pass of the pipeline 'attn-pipeline' has an option 'blok-q'
// AFTER:    attn-opt: error: no pass 'attn-tile' in the pipeline to print after
