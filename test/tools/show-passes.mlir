// RUN: attn-opt --show-passes | FileCheck %s --check-prefix=PASSES
// RUN: attn-opt --show-pipelines | FileCheck %s --check-prefix=PIPELINES
// RUN: attn-opt --help | FileCheck %s --check-prefix=HELP

// PASSES-NOT: unavailable
// PASSES:     attn-simplify
// PASSES:     attn-tile-rows{block-q=64 block-kv=64 whole=false} {{ *}}Replaces each function
// PASSES:     tile-schedule{target=
// PASSES-NOT: unavailable
// PIPELINES:  attn-pipeline {{ *}}attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-fit-range,attn-chunk-rewrite,attn-guard-empty-rows,attn-tile
// HELP:       usage: attn-opt
// HELP:       --attn-tile='block-q=32 block-kv=64'
