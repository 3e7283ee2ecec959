// How warps of the producer copy pages: `gather` 2, part by part. Nothing else can be asked for, and nothing where keys do not lie in pages.
// RUN: sed -e 's/x16xf32/x64xf16/g; s/x8xf32/x64xf16/g' -e '2s/ {$/ attributes {tile.choices = {emitter = "hopper", gather = 2 : i64}} {/' %inputs/paged-causal.mlir | attn-translate --to cuda - | FileCheck %s
// RUN: sed '1s/ {$/ attributes {tile.choices = {emitter = "hopper", gather = 3 : i64}} {/' %inputs/softmax-f16.mlir | not attn-translate --to cuda - 2>&1 | FileCheck %s --check-prefix=OTHER
// RUN: sed '1s/ {$/ attributes {tile.choices = {emitter = "hopper", gather = 2 : i64}} {/' %inputs/softmax-f16.mlir | not attn-translate --to cuda - 2>&1 | FileCheck %s --check-prefix=DENSE

// OTHER: the emitter 'hopper' does not make this kernel for sm_90a: gather can be 0, 1 or 2 in a schedule, not 3
// DENSE: the emitter 'hopper' does not make this kernel for sm_90a: gather says how pages are copied, and these keys do not lie in pages: leave it out

// The warp that tells the others waits until all lanes have written, and these until all lanes have read what comes.
// CHECK:      if (lane < [[PARTS:[0-9]+]]) attn::store_shared_int4(message + lane * 16, page, at, some,
// CHECK-NEXT: attn::warp_sync();
// CHECK-NEXT: if (lane == 0) {
// CHECK:        attn::barrier_arrive_expect(shared + {{.*}}, {{[0-9]+}});
// CHECK-NEXT:   attn::barrier_arrive(shared + {{.*}});
// CHECK-NEXT: }
// CHECK-NEXT: attn::warp_sync();
// CHECK-NEXT: #pragma unroll
// CHECK-NEXT: for (int turn = 0; turn < [[PARTS]]; turn += 4) {
// CHECK:      attn::barrier_wait(shared + {{.*}}, {{.*}});
// CHECK:      const int asked = attn::load_shared_int(message + 12);
// CHECK-NEXT: if (asked < 0) break;
// CHECK-NEXT: attn::warp_sync();
// CHECK-NEXT: #pragma unroll
// CHECK-NEXT: for (int turn = 0; turn < [[PARTS]]; turn += 4) {
// CHECK-NEXT:   const int part = turn + attn::warp_index() - {{[0-9]+}};
// CHECK-NEXT:   const int4 told = attn::load_shared_int4(message + part * 16);
// CHECK-NEXT:   if (lane == 0) {
// CHECK-NEXT:     if (told.z % 16 == 0) {
