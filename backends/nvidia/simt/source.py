"""The CUDA function around the printed statements."""

import re

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.scalar_ops import c_type
from attn_mlir.backends.nvidia.simt.values import Printer
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.mlir import ir

_HEADER = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"
_PACK = """// V elements, read and written at once where memory is aligned to them.
template <typename T, int V> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) Pack { T x[V]; };
"""
_LOAD = """template <bool Aligned, typename T, int V>
static __device__ __forceinline__ void load_pack(Pack<T, V> &pack, const T *from, long long stride) {
  if constexpr (Aligned) {
    pack = *reinterpret_cast<const Pack<T, V> *>(from);
  } else {
#pragma unroll
    for (int e = 0; e < V; ++e) pack.x[e] = from[e * stride];
  }
}
"""
_STORE = """template <bool Aligned, typename T, int V>
static __device__ __forceinline__ void store_pack(T *to, const Pack<T, V> &pack, long long stride) {
  if constexpr (Aligned) {
    *reinterpret_cast<Pack<T, V> *>(to) = pack;
  } else {
#pragma unroll
    for (int e = 0; e < V; ++e) to[e * stride] = pack.x[e];
  }
}
"""
_SUM = """// The sum over all threads of a block, in thread 0.
template <int Threads, typename T> static __device__ __forceinline__ T block_sum(T x) {
  __shared__ T parts[Threads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  T total = 0;
  for (int warp = 0; warp < Threads / 32; ++warp) total += parts[warp];
  return total;
}
"""


def source(kernel: ir.Operation, printer: Printer, threads: int, ordered: bool, target: NvidiaTarget) -> KernelCode:
    """The kernel whose statements are printed. `ordered`: the first block of each head does the work of all."""
    name = ir.StringAttr(kernel.attributes["sym_name"]).value
    text = "\n".join(printer.lines)
    aligned = _aligned(printer)
    declarations = printer.arguments.declarations()
    parameters = ", ".join(declarations)
    start = ["  const int head = blockIdx.y, batch = blockIdx.z;"]
    start += ["  if (blockIdx.x != 0) return;"] if ordered else ["  const int block = blockIdx.x;"]
    start += [f"  const int lane = threadIdx.x % {printer.lanes};"] if printer.lanes > 1 else []
    body = "\n".join([*start, text])
    head = f'extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters})'
    if printer.packed:
        call = ", ".join(re.findall(r"\w+$", declaration)[0] for declaration in declarations)
        rows = f"template <bool Aligned> static __device__ __forceinline__ void {name}_rows({parameters}) {{\n{body}\n}}\n\n"
        function = f"{rows}{head} {{\n  if ({aligned})\n    {name}_rows<true>({call});\n  else\n    {name}_rows<false>({call});\n}}\n"
    else:
        function = f"{head} {{\n{body}\n}}\n"
    used = [_PACK if "Pack<" in text else "", _LOAD if "load_pack" in text else "", _STORE if "store_pack" in text else ""]
    helpers = "".join(used) + (_SUM if "block_sum<" in text else "") + printer.scalars.helper_source()
    code = f"{_HEADER}\n{helpers}\n{function}"
    return KernelCode(name, name, code, printer.arguments.parameters(), threads, 0, arch=target.arch)


def _aligned(printer: Printer) -> str:
    """The condition that packs may be read and written at once: columns side by side, rows at multiples of a pack."""
    conditions: list[str] = []
    for memory, size in printer.packed.items():
        element = ir.MemRefType(memory.type).element_type
        strides = [printer.arguments.stride(memory, dim) for dim in range(4)]
        conditions.append(f"{strides[3]} == 1")
        address = f"(long long){printer.arguments.pointer(memory)}"
        bits = " | ".join([address, *(f"{stride} * (long long)sizeof({c_type(element)})" for stride in strides[:3])])
        conditions.append(f"(({bits}) & {size - 1}) == 0")
    return " && ".join(conditions)
