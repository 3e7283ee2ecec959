"""The CUDA file of a scheduled kernel: prelude, instructions, helpers and the function around its roles; and how it is launched."""

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.unread import without_unread
from attn_mlir.backends.nvidia.device_helpers import text_of
from attn_mlir.backends.nvidia.hopper.kernel_text import header
from attn_mlir.backends.nvidia.warp.memory import reserve
from attn_mlir.backends.nvidia.warp.printer import Rule, WarpPrinter, plain
from attn_mlir.backends.nvidia.warp.structure import role
from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.dialects.warp.structure import host_of, shares
from attn_mlir.mlir import ir

_PRELUDE = """namespace attn {
ATTN_DEVICE float2 unpack_f16(uint32_t pair) { return __half22float2(reinterpret_cast<const __half2 &>(pair)); }
// Of a __nv_bfloat162 nvcc takes the halves apart and puts them together again.
ATTN_DEVICE float2 unpack_bf16(uint32_t pair) { return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)); }
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
EIGHT_BIT = "attn_eight_bit.cuh"
"""A file of helpers that kernels of 8-bit elements have besides."""


def kernel_code(kernel: ir.Operation, rules: dict[str, Rule]) -> KernelCode:
    """Prints a `warp.kernel`. Raises UnsupportedError for an op without a rule, or one that does what its chip cannot."""
    printer = WarpPrinter(kernel, rules)
    printer.writer.indent = "  "
    ops = [view.operation for view in kernel.regions[0].blocks[0].operations]
    roles = [op for op in ops if op.name == "warp.role"]
    reserve(printer, ops)
    for op in ops:
        if op.name != "warp.role":
            printer.op(op)
    if any(op.name == "warp.mbarrier" for op in ops):
        # No role may arrive at, or copy towards, an mbarrier that is not initialised yet.
        printer.line("attn::barrier_init_fence();", "__syncthreads();")
    first = 0
    for op in [each for each in roles if not shares(each)]:
        role(printer, op, [each for each in roles if shares(each) and host_of(each) == op], (first, plain(kernel, "registers")))
        first += plain(op, "warpgroups")
    return _code(printer, plain(kernel, "sym_name"), WARPGROUP * first)


def _code(printer: WarpPrinter, name: str, threads: int) -> KernelCode:
    """Thread blocks of a persistent kernel share a multiprocessor as it was formed for, others as far as registers allow."""
    target = printer.target
    of_block = plain(printer.kernel, "register_file") if target.bulk_copies else threads * plain(printer.kernel, "registers")
    blocks = max(1, target.registers // of_block)
    declared = ",\n".join(f"    {text}" for text in printer.arguments.declarations())
    eight_bit = any(isinstance(each.type, ir.MemRefType) and is_eight_bit(each.type.element_type) for each in printer.arguments.values)
    helpers = dict.fromkeys([*[EIGHT_BIT] * eight_bit, *printer.headers])
    lines = [
        f'extern "C" __global__ void __launch_bounds__({threads}, {blocks}) {name}(',
        f"{declared}) {{",
        "  extern __shared__ __align__(1024) unsigned char memory[];",
        "  const uint32_t shared = attn::shared_address(memory);",
        "  const int group = attn::warpgroup_index(), warp = attn::warp_index() % 4, lane = threadIdx.x % 32;",
        *without_unread(printer.writer.lines),
        "}",
    ]
    return KernelCode(
        name=name,
        entry=name,
        source="\n".join(
            [
                header(),
                _PRELUDE,
                *(text_of(f"warp/{name}") for name in helpers),
                *printer.instructions.values(),
                printer.helper_source(),
                *lines,
                "",
            ]
        ),
        parameters=printer.arguments.parameters(),
        threads=threads,
        shared_bytes=printer.used,
        occupancy=blocks if target.bulk_copies else 1,
        grid="persistent" if target.bulk_copies else "tiles",
        arch=target.arch,
    )
