"""The CUDA file of a scheduled kernel: prelude, instructions, helpers and the function around its roles; and how it is launched."""

from importlib.resources import files

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.hopper.kernel_text import header
from attn_mlir.backends.nvidia.warp.printer import Rule, WarpPrinter, plain
from attn_mlir.backends.nvidia.warp.structure import role
from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.mlir import ir

_PRELUDE = """namespace attn {
ATTN_DEVICE float2 unpack_f16(uint32_t pair) { return __half22float2(reinterpret_cast<const __half2 &>(pair)); }
ATTN_DEVICE float2 unpack_bf16(uint32_t pair) { return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162 &>(pair)); }
// Numbers of N rows from `row` on, those past the last of `size` zeros; each lane arrives when its own have landed.
template <int N>
ATTN_DEVICE void copy_rows(uint32_t to, const float *from, long long stride, int row, int size, uint32_t barrier) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < N; i += 32) {
    const int at = row + i + lane;
    const bool exists = at >= 0 && at < size;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + 4 * (i + lane)), "l"(from + (exists ? at : 0) * stride),
                 "r"(exists ? 4 : 0)
                 : "memory");
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
} // namespace attn
"""
WARPGROUP = 128
"""Threads of a warpgroup."""
_EIGHT_BIT = """namespace attn {
ATTN_DEVICE uint32_t pack_e4m3(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
ATTN_DEVICE uint32_t pack_e5m2(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
// The place of a byte in a tile whose chunks of 16 bytes are permuted in rows of 64 or 128.
template <int RowBytes> ATTN_DEVICE uint32_t swizzle(uint32_t offset) { return offset ^ ((offset >> 3) & (RowBytes - 16)); }
ATTN_DEVICE void load_matrices_transposed(uint32_t address, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");
}
// A K-major operand in rows of 64 bytes, swizzled over as many.
ATTN_DEVICE uint64_t k_major_64(uint32_t address) { return descriptor_at(address, (1ull << 16) | (32ull << 32) | (2ull << 62)); }
} // namespace attn
"""
"""What kernels of 8-bit elements have besides."""


def kernel_code(kernel: ir.Operation, rules: dict[str, Rule]) -> KernelCode:
    """Prints a `warp.kernel`. Raises UnsupportedError for an op without a rule, or one that does what its chip cannot."""
    printer = WarpPrinter(kernel, rules)
    printer.writer.indent = "  "
    ops = [view.operation for view in kernel.regions[0].blocks[0].operations]
    roles = [op for op in ops if op.name == "warp.role"]
    for op in ops:
        if op.name != "warp.role":
            printer.op(op)
    if any(op.name == "warp.mbarrier" for op in ops):
        # No role may arrive at, or copy towards, an mbarrier that is not initialised yet.
        printer.line("attn::barrier_init_fence();", "__syncthreads();")
    first = 0
    for op in roles:
        role(printer, op, first, plain(kernel, "registers"))
        first += plain(op, "warpgroups")
    return _code(printer, plain(kernel, "sym_name"), WARPGROUP * first)


def _code(printer: WarpPrinter, name: str, threads: int) -> KernelCode:
    """A persistent kernel has a multiprocessor for itself; others share it with as many as registers allow."""
    target = printer.target
    residents = 1 if target.bulk_copies else max(1, target.registers // (threads * plain(printer.kernel, "registers")))
    declared = ",\n".join(f"    {text}" for text in printer.arguments.declarations())
    eight_bit = any(isinstance(each.type, ir.MemRefType) and is_eight_bit(each.type.element_type) for each in printer.arguments.values)
    lines = [
        f'extern "C" __global__ void __launch_bounds__({threads}, {residents}) {name}(',
        f"{declared}) {{",
        "  extern __shared__ __align__(1024) unsigned char memory[];",
        "  const uint32_t shared = attn::shared_address(memory);",
        "  const int group = attn::warpgroup_index(), warp = attn::warp_index() % 4, lane = threadIdx.x % 32;",
        *printer.writer.lines,
        "}",
    ]
    return KernelCode(
        name=name,
        entry=name,
        source="\n".join(
            [
                header(),
                _PRELUDE,
                *[_EIGHT_BIT] * eight_bit,
                *map(_file, printer.headers),
                *printer.instructions.values(),
                printer.helper_source(),
                *lines,
                "",
            ]
        ),
        parameters=printer.arguments.parameters(),
        threads=threads,
        shared_bytes=printer.used,
        grid="persistent" if target.bulk_copies else "tiles",
        arch=target.arch,
    )


def _file(name: str) -> str:
    """A file of helpers beside this one."""
    return (files("attn_mlir.backends.nvidia.warp") / name).read_text().replace("#pragma once\n", "")
