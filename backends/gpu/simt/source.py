"""The function around the printed statements."""

import re
from dataclasses import replace

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.scalar_ops import c_type
from attn_mlir.backends.gpu.simt.dialect import Dialect
from attn_mlir.backends.gpu.simt.values import RowPrinter
from attn_mlir.mlir import ir

_PACK = """// V elements, read and written at once where memory is aligned to them.
template <typename T, int V> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) Pack { T x[V]; };
"""
_LOAD = """template <bool Aligned, typename T, int V>
@device void load_pack(Pack<T, V> &pack, const T *from, long long stride) {
  if constexpr (Aligned) {
    pack = *reinterpret_cast<const Pack<T, V> *>(from);
  } else {
#pragma unroll
    for (int e = 0; e < V; ++e) pack.x[e] = from[e * stride];
  }
}
"""
_STORE = """template <bool Aligned, typename T, int V>
@device void store_pack(T *to, const Pack<T, V> &pack, long long stride) {
  if constexpr (Aligned) {
    *reinterpret_cast<Pack<T, V> *>(to) = pack;
  } else {
#pragma unroll
    for (int e = 0; e < V; ++e) to[e * stride] = pack.x[e];
  }
}
"""
_SUM = """// The sum over all threads of a block, in thread 0.
template <int Threads, typename T> @device T block_sum(T x) {
  @shared T parts[Threads / @wave];
#pragma unroll
  for (int step = @wave / 2; step > 0; step /= 2) x += @neighbour;
  @barrier;
  if (@thread % @wave == 0) parts[@thread / @wave] = x;
  @barrier;
  T total = 0;
  for (int warp = 0; warp < Threads / @wave; ++warp) total += parts[warp];
  return total;
}
"""
_SCAN = """// The sum over a thread and all threads of its block before it.
template <int Threads, typename T> @device T block_scan(T x) {
  @shared T wholes[Threads / @wave];
  T whole = x;
#pragma unroll
  for (int step = 1; step < @wave; step *= 2) {
    const T other = @of_whole;
    if (@thread & step) x += other;
    whole += other;
  }
  @barrier;
  if (@thread % @wave == 0) wholes[@thread / @wave] = whole;
  @barrier;
  for (int warp = 0; warp < (int)@thread / @wave; ++warp) x += wholes[warp];
  return x;
}
"""


def source(kernel: ir.Operation, printer: RowPrinter, threads: int, ordered: bool) -> KernelCode:
    """The kernel whose statements are printed. `ordered`: the first block of each head does the work of all."""
    name, dialect = ir.StringAttr(kernel.attributes["sym_name"]).value, printer.dialect
    text = "\n".join(printer.lines)
    aligned = _aligned(printer)
    declarations = printer.arguments.declarations()
    parameters = ", ".join(declarations)
    block, head_number, batch = dialect.place
    start = [f"  const int head = {head_number}, batch = {batch};"]
    start += [f"  if ({block} != 0) return;"] if ordered else [f"  const int block = {block};"]
    start += [f"  const int lane = {dialect.thread} % {printer.lanes};"] if printer.lanes > 1 else []
    body = "\n".join([*start, text])
    head = dialect.head(threads, name, parameters)
    if printer.packed:
        call = ", ".join(re.findall(r"\w+$", declaration)[0] for declaration in declarations)
        rows = f"template <bool Aligned> {dialect.device} void {name}_rows({parameters}) {{\n{body}\n}}\n\n"
        body = f"  if ({aligned})\n    {name}_rows<true>({call});\n  else\n    {name}_rows<false>({call});"
    else:
        rows = ""
    before, after = (f"  {statement}\n" if statement else "" for statement in dialect.around)
    function = f"{rows}{head} {{\n{before}{body}\n{after}}}\n"
    used = [_PACK if "Pack<" in text else "", _LOAD if "load_pack" in text else "", _STORE if "store_pack" in text else ""]
    used += [_SUM if "block_sum<" in text else "", _SCAN if "block_scan<" in text else ""]
    helpers = _in("".join(used), dialect)
    helpers += printer.scalars.helper_source(dialect.language == "cuda")
    code = dialect.change(f"{dialect.includes}\n{helpers}\n{function}")
    shared = threads // dialect.wave * 4 * sum(name in text for name in ("block_sum<", "block_scan<")) if dialect.language == "hip" else 0
    parameters_ = printer.arguments.parameters()
    made = KernelCode(name, name, code, parameters_, threads, shared, language=dialect.language, arch=dialect.arch)
    return replace(made, flags=dialect.flags) if dialect.flags else made


def _in(text: str, dialect: Dialect) -> str:
    """The helpers in a dialect."""
    words = {
        "@device": dialect.device, "@shared": dialect.shared, "@wave": str(dialect.wave), "@thread": dialect.thread,
        "@barrier": dialect.barrier, "@neighbour": dialect.neighbour("x", "step"),
        "@of_whole": dialect.neighbour("whole", "step"),
    }  # fmt: skip
    for word, phrase in words.items():
        text = text.replace(word, phrase)
    return text


def _aligned(printer: RowPrinter) -> str:
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
