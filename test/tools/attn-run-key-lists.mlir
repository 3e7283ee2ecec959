// Lists of keys mean the same at every stage down to tiles, also where keys are listed one by one.
// RUN: sed -e '/CHECK:.*@pairs/,$d' %S/../dialects/attn/key-lists.mlir > %t.mlir
// RUN: attn-run %t.mlir -p 'attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=32}' --after-each | FileCheck %s
// RUN: sed -e 's/16, 64, 32/3, 1, 32/' %t.mlir > %t-keys.mlir
// RUN: attn-run %t-keys.mlir -p 'attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=32}' --after-each | FileCheck %s

// CHECK:       B=2 Hq=4 Hkv=2 Sq=17 Skv=23  o: abs {{.*}}e-1{{[0-9]}}
// CHECK:       PASS
