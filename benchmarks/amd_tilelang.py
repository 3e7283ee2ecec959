"""TileLang's flash attention for gfx90a under our report: `python benchmarks/amd_tilelang.py [D:ROWS:KEYS:THREADS:LENGTH ...]`.

A plain TileLang program, forward without a mask, is lowered to HIP, compiled by clang with the flags of our kernels, and one block of it is
run by the interpreter. Without arguments, tiles are those that are best in the report. Neither a GPU nor ROCm is needed; what its source
takes from their headers is in `amd_tilelang.h`.
"""

import argparse
import re
from pathlib import Path
from typing import Any

import tilelang
import tilelang.language as T
import torch
from tvm.target import Target  # type: ignore[import-not-found]

from attn_mlir.backends.amd.report import report_of
from attn_mlir.backends.amd.source import FLAGS
from attn_mlir.backends.gpu.kernel import KernelCode, KernelParameter
from attn_mlir.backends.gpu.packing import grid_of

HEADER = Path(__file__).parent / "amd_tilelang.h"
BEST = ("64:128:32:256:2048", "128:128:32:256:2048")
LOG2_E = 1.4426950408889634


def flash(columns: int, rows: int, keys: int, threads: int, length: int) -> Any:
    """Attention of one head of `columns` columns, [1, 1, length, columns] each."""
    shape, scale, element = (1, 1, length, columns), LOG2_E / columns**0.5, "float16"

    @T.prim_func
    def flash(q: T.Tensor(shape, element), k: T.Tensor(shape, element), v: T.Tensor(shape, element), o: T.Tensor(shape, element)):  # type: ignore[valid-type]
        with T.Kernel(T.ceildiv(length, rows), 1, 1, threads=threads) as (block, head, batch):
            q_tile = T.alloc_shared((rows, columns), element)
            k_tile = T.alloc_shared((keys, columns), element)
            v_tile = T.alloc_shared((keys, columns), element)
            scores = T.alloc_fragment((rows, keys), "float32")
            weights = T.alloc_fragment((rows, keys), element)
            sums = T.alloc_fragment((rows, columns), "float32")
            row_max = T.alloc_fragment((rows,), "float32")
            old_max = T.alloc_fragment((rows,), "float32")
            factor = T.alloc_fragment((rows,), "float32")
            row_sum = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            T.copy(q[batch, head, block * rows : (block + 1) * rows, :], q_tile)
            T.fill(sums, 0)
            T.fill(total, 0)
            T.fill(row_max, -T.infinity("float32"))
            for step in T.Pipelined(T.ceildiv(length, keys), num_stages=0):
                T.copy(k[batch, head, step * keys : (step + 1) * keys, :], k_tile)
                T.copy(v[batch, head, step * keys : (step + 1) * keys, :], v_tile)
                T.clear(scores)
                T.gemm(q_tile, k_tile, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(row_max, old_max)
                T.reduce_max(scores, row_max, dim=1, clear=False)
                for i in T.Parallel(rows):
                    factor[i] = T.exp2((old_max[i] - row_max[i]) * scale)
                for i, j in T.Parallel(rows, columns):
                    sums[i, j] = sums[i, j] * factor[i]
                for i, j in T.Parallel(rows, keys):
                    scores[i, j] = T.exp2(scores[i, j] * scale - row_max[i] * scale)
                T.copy(scores, weights)
                T.gemm(weights, v_tile, sums, policy=T.GemmWarpPolicy.FullRow)
                T.reduce_sum(scores, row_sum, dim=1)
                for i in T.Parallel(rows):
                    total[i] = total[i] * factor[i] + row_sum[i]
            for i, j in T.Parallel(rows, columns):
                sums[i, j] = sums[i, j] / total[i]
            T.copy(sums, o[batch, head, block * rows : (block + 1) * rows, :])

    return flash


def lowered(columns: int, rows: int, keys: int, threads: int, length: int) -> KernelCode:
    """TileLang's HIP as a kernel for our compiler and interpreter; its tensors are arguments in the order k, o, q, v."""
    target = Target({"kind": "hip", "mcpu": "gfx90a"})
    with target:
        made = tilelang.lower(flash(columns, rows, keys, threads, length), target=target)
    (function,) = made.device_mod.functions.values()
    shared = int(function.attrs["dyn_shared_memory_buf"])
    source = re.sub(r"#include <.*>\n", "", made.kernel_source)
    source = source.replace(
        "extern __shared__ __align__(1024) uchar buf_dyn_shmem[]", f"__shared__ __align__(1024) uchar buf_dyn_shmem[{shared}]"
    )
    found = re.search(r"flash_kernel\(([^)]*)\)", source)
    assert found is not None
    names = [declared.split()[-1] for declared in found.group(1).split(",")]
    parameters = tuple(KernelParameter("pointer", "qkvo".index(name)) for name in names)
    text = HEADER.read_text() + source
    return KernelCode(
        f"tilelang_d{columns}_{rows}x{keys}", "flash_kernel", text, parameters, threads, shared, language="hip", arch="gfx90a", flags=FLAGS
    )


def main() -> None:
    """Prints the report for each choice of tiles, and how far the block that ran is from the dense formula."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tiles", nargs="*", default=list(BEST), metavar="D:ROWS:KEYS:THREADS:LENGTH")
    for tiles in parser.parse_args().tiles:
        columns, rows, keys, threads, length = map(int, tiles.split(":"))
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(1, 1, length, columns, generator=generator).half() for _ in range(3))
        o = torch.zeros_like(q)
        code = lowered(columns, rows, keys, threads, length)
        print(report_of(code, [q, k, v, o], grid_of(code, rows, q.shape), length))
        middle = slice(length // rows // 2 * rows, (length // rows // 2 + 1) * rows)
        want = torch.softmax(q.double()[:, :, middle] @ k.double().mT / columns**0.5, -1) @ v.double()
        print(f"  error        {float((o[:, :, middle].double() - want).abs().max()):.1e} at most, of {float(want.abs().max()):.2f}\n")


if __name__ == "__main__":
    main()
