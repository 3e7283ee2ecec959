// Windows and bands have buffers of their own, and what is read of them is loaded as vectors: none is gathered in a loop over columns.
// RUN: attn-opt %inputs/relative-bias.mlir -p 'attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-tile{block-q=32 block-kv=64},canonicalize,cse,tile-load-windows,tile-schedule{target=cpu}' | FileCheck %s --check-prefix=BAND
// RUN: attn-opt %inputs/bias.mlir -p 'attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-tile{block-q=32 block-kv=64},canonicalize,cse,tile-load-windows,tile-schedule{target=cpu}' | FileCheck %s --check-prefix=WINDOW
// RUN: attn-run %inputs/relative-bias.mlir -p 'attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=32 block-kv=64},canonicalize,cse,tile-load-windows'
// RUN: attn-run %inputs/bias.mlir -p 'attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=32 block-kv=64},canonicalize,cse,tile-load-windows'

// BAND: tile.buffers = [2048, 2048, 2048, 128]
// BAND: "tile.band"{{.*}}
// BAND: }) {buffer = [3], layout = ["band"]}

// WINDOW: tile.buffers = [2048, 2048, 2048, 2048]
// WINDOW: "tile.load_window"({{.*}} {buffer = [3], column_steps = array<i64: 0, 0, 0, 1>, layout = ["window"], row_steps
