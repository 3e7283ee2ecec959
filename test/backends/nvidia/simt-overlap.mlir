// A kernel that only adds up rows may run beside another one: it lets the next one start at once, and ends after the one before it.
// RUN: attn-opt %s -p 'attn-outline{keep-hosts=false},nvidia-kernel' | attn-translate - --to cuda | FileCheck %s
func.func @attention(%q: tensor<?x?x?x64xbf16>) -> tensor<?x?x?xf32> {
  %squares = "attn.row_dot"(%q, %q) : (tensor<?x?x?x64xbf16>, tensor<?x?x?x64xbf16>) -> tensor<?x?x?xf32>
  return %squares : tensor<?x?x?xf32>
}
// CHECK:      extern "C" __global__ void __launch_bounds__(256) attention(
// CHECK-NEXT:   asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
// CHECK:          attention_rows<true>(
// CHECK:          attention_rows<false>(
// CHECK-NEXT:   asm volatile("griddepcontrol.wait;" ::: "memory");
// CHECK-NEXT: }
