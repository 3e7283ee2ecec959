"""Faults planted in what the AMD backend prints: in the kernels, and in the helpers of attn_amd.h that they are made of."""

from dataclasses import dataclass

from amd_planting import Planted


@dataclass(frozen=True)
class Fault(Planted):
    """`case` is one of `gpu_cases.CASES`, whose scores are `scale` times as large as usual; `backward`: gradients are computed, too."""

    backward: bool = False
    case: str = "causal softmax"
    scale: float = 1.0


FAULTS = (
    Fault("no barrier before a block is stored", r"attn::barrier\(\);(\s+\{)", r"\1"),
    Fault("no barrier after a block is stored", r"(attn::barrier\(\);(?:.|\n)*?)attn::barrier\(\);", r"\1", first=True),
    Fault("barriers order nothing", r"  __builtin_amdgcn_s_barrier\(\);", "", backward=True),
    Fault("rows of a product's operand not permuted", r"row = permuted_row\(lane & 31\);", "row = lane & 31;"),
    Fault("rows permuted otherwise", r"\(i & 4\) << 2 \| \(i >> 1 & 12\)", "(i & 4) << 1 | (i >> 1 & 4) | (i & 16)"),
    Fault("chunks read without the swizzle", r"chunk_at<Chunks>\(\(unsigned char \*\)tile \+ u \* \(512 \* Chunks\), row, (t / 2 [^)]*)\)",
          r"(tile + u * (512 * Chunks) + row * (16 * Chunks) + ((\1) << 4))"),
    Fault("transposed chunks written without the swizzle", r"chunk_at<Chunks>\(tile, column \+ c, row >> 3\)",
          "(tile + (column + c) * (16 * Chunks) + (row >> 3 << 4))"),
    Fault("halves of words change places in the transposition", r"0x07060302u : 0x05040100u\);", "0x05040100u : 0x07060302u);"),
    Fault("operands of a product change places", r"bits<Half4>\(a\.xy\), bits<Half4>\(b\.xy\)", "bits<Half4>(b.xy), bits<Half4>(a.xy)"),
    Fault("half of the terms of a product left out", r".*bits<Half4>\(a\.zw\).*", ""),
    Fault("mask off by one", r"const bool (is\w*) = (\w+) >= (\w+);", r"const bool \1 = \2 > \3;", backward=True),
    Fault("mask lets the next key in", r"const bool (is\w*) = (\w+) >= (\w+);", r"const bool \1 = \2 + 1 >= \3;", backward=True),
    Fault("keys behind the end count", r"< left(_\d+)?\b", "< 1000", case="softmax"),
    Fault("rows behind the end are stored", r"if \(lane == 0 && \w+ < \w+\) out0", "if (lane == 0) out0", backward=True),
    Fault("sums behind the end are added",
          r"if \(query \* 32 \+ half \* 16 \+ r < \w+\) attn::atomic_add", "attn::atomic_add", backward=True),
    Fault("rows behind the end are fetched",
          r"rows > 0 \? \(int\)\(\(rows - 1\) \* stride\) \+ columns : 0", "(int)(127 * stride) + columns"),
    Fault("the next block fetched once more", r"fetch\((\w+) \+ (\d+) < (\w+) \? \1 \+ \2", r"fetch(\1 + \2 < \3 ? \1", case="softmax"),
    Fault("halves of a row do not exchange their maximum", r"attn::other_half\((row_max\w*)\)", r"\1"),
    Fault("halves of a row do not exchange their sum", r"(\w+) \+ attn::other_half\((\w+)\)", r"\1 + \2"),
    Fault("exchange with the wrong lane", r"\(thread\(\) & 63\) \^ 32", "(thread() & 63) ^ 16"),
    Fault("key head of another group", r"quotient<int>\(head, \w+\)", "(head % k_n1)"),
    Fault("query head of another group", r"= head \* (\w+);", r"= (k_n1 - 1 - head) * \1;", backward=True),
    Fault("sums not rescaled", r"(void rescale\((?:.|\n)*?)tile\[n\] \*= factor;", r"\1;", case="softmax", scale=8.0),
    Fault("factors of weights not taken out", r"multiply\(sum, 1\.0f / scale\);", "", backward=True),
    Fault("factors of waves mixed up", r"part \* factors\[wave\]", "part * factors[wave ^ 1]", backward=True, case="retention"),
    Fault("sums added without atomic operations", r"attn::atomic_add\((.+), (query_sum.*?)\);", r"*(\1) += \2;", backward=True),
    Fault("an exchange that only some lanes reach", r"if \(!any\(largest \* scale > 32768\.0f\)\) return;",
          "if (!(largest * scale > 32768.0f)) return;", backward=True),
    Fault("two tiles overlap in shared memory", r"keep_transposed<(\d+)>\(memory \+ (\d+)",
          lambda m: f"keep_transposed<{m[1]}>(memory + {int(m[2]) - 64}"),
    Fault("part of a block is not stored", r"if \(attn::thread\(\) \+ 256 \* i < (\d+)\)",
          lambda m: f"if (attn::thread() + 256 * i < {int(m[1]) // 2})"),
)  # fmt: skip
