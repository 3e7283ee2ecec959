"""Faults planted in what the AMD backend prints for chunk scans: in the kernel, and in the helpers that it is made of."""

from amd_planting import Planted as Fault

FAULTS = (
    Fault("a chunk begins without a barrier", r"(for \(int at = [^\n]*\n)\s+attn::barrier\(\);", r"\1"),
    Fault("no barrier before a product", r"attn::barrier\(\);(\s+attn::Array<attn::Block<32>::Floats)", r"\1", first=True),
    Fault("waves read their sums before they are written", r"  __builtin_amdgcn_wave_barrier\(\);", ""),
    Fault("rows of an operand not permuted", r"return permuted_row\(thread\(\) & 31\);", "return thread() & 31;"),
    Fault("operands of a product change places", r"(multiply_block<T>\(to[^;]*), y\[n\], x\[m\]\)", r"\1, x[m], y[n])"),
    Fault("half of the terms of a product left out", r"t \+= kTogether", "t += 2 * kTogether"),
    Fault("chunks of the transpose written without the swizzle", r"chunk_in<Chunks>\(tile, column \+ c, row >> 3\)",
          "(tile + (column + c) * (16 * Chunks) + (row >> 3 << 4))"),
    Fault("a position does not add to its own output", r"\(i >= j\)", "(i > j)"),
    Fault("positions past the end enter the state", r"\(?i < n_\d+\)? \? ", "true ? "),
    Fault("decays of the position before", r"min\(\(next \+ i\), \(\w+ - 1\)\)", r"max(next + i - 1, 0)"),
    Fault("rows past the end are stored", r"if \(at_row < n_\d+\)", "if (true)"),
    Fault("the state does not decay", r"\w+\[0\] \*= \w+;", ""),
    Fault("what leaves the state does not decay", r"\w+\[0\] \*= \(\(const float \*\)[^;]*;", ""),
    Fault("a chunk is loaded twice", r"fetch\(at \+ (\d+)\);", "fetch(at);"),
    Fault("sums of decays start again every sixteen positions", r"sum = before;", ";"),
    Fault("the total of a chunk without its last position", r"of_lane\((\w+)\[0\], 63\)", r"of_lane(\1[0], 62)"),
    Fault("two tiles overlap in shared memory", r"constexpr int (\w+_columns) = (\d+);",
          lambda m: f"constexpr int {m[1]} = {max(0, int(m[2]) - 64)};"),
    Fault("waves take the wrong block of a product", r"(multiply<__half, 32[^;]*), wave % 2 \* 32\);", r"\1, wave / 2 * 32);", first=True),
    Fault("key head of another group", r"(k \+ batch \* k_s0 \+ )\w+ \* k_s1", r"\1(k_n1 - 1) * k_s1"),
)  # fmt: skip

# In a scan of f32 inputs.
FLOAT32_FAULTS = (
    Fault("three of a lane's four terms", r"(i < )4(; \+\+i\) to = __builtin_amdgcn_mfma_f32_32x32x2f32)", r"\g<1>3\2"),
    Fault(
        "terms of the factors in different order", r"(mfma_f32_32x32x2f32\(bits<Float4>\(a\)\[i\], bits<Float4>\(b\))\[i\]", r"\1[3 - i]"
    ),
    Fault("the first half of eight columns loaded twice", r"(high = load_floats_4<[^;]*), column \+ 4\)", r"\1, column)"),
    Fault("a row of the transpose written as it is", r"Float8\{x\[0\]\[c\], x\[1\]\[c\]", "Float8{x[c][0], x[c][1]"),
    Fault(
        "sums of log decays of the lower words of f64 alone",
        r"mov_dpp\(\(int\)words\.y, Control",
        "mov_dpp((int)words.x, Control",
    ),
)
