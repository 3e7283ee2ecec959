"""Kernels of standard programs by NVRTC and by nvcc, without a GPU: seconds of a core; whether code, registers and warnings are the same.

    python benchmarks/nvidia_compile.py [--dims 64 128] [--mask causal] [--pairs]

`--pairs` times a forward and a backward pass from nothing: lowering, emission and machine code, one after the other and side by side.
"""

import argparse
import os
import struct
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import compile as cuda_compiler
from attn_mlir.backends.nvidia import driver
from attn_mlir.tools.ship_kernels import Standard

COMPILERS = ("nvrtc", "nvcc")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--mask", default="causal", choices=["full", "causal", "window"])
    parser.add_argument("--element", default="f16", choices=["f16", "bf16"])
    parser.add_argument("--pairs", action="store_true")
    options = parser.parse_args(argv)
    if options.pairs:
        for compiler in COMPILERS:
            for beside in (False, True):
                print(
                    f"{compiler} {'side by side' if beside else 'in turn'}: {pair(compiler, options.mask, options.dims[0], beside):.2f} s"
                )
        return
    codes: dict[str, KernelCode] = {}
    for dim in options.dims:
        for function in ("", "fwd", "bwd"):
            units = Standard(options.mask, options.element, dim, function).program().units
            codes |= {f"{dim} {function or 'o'} {name.rpartition('_')[2]}": unit.code for name, unit in units.items()}
    print(compare({name: code for name, code in codes.items() if not code.includes}))


def compare(codes: dict[str, KernelCode]) -> str:
    """A table of kernels: how long each compiler takes, what it says, and whether the machine code is the same."""
    lines = [f"{'kernel':<28} {'nvrtc s':>8} {'nvcc s':>8} {'registers':>10} {'spills':>8}  machine code"]
    for name, code in codes.items():
        made: dict[str, tuple[float, cuda_compiler.Cubin]] = {compiler: timed(compiler, code) for compiler in COMPILERS}
        (ours_s, ours), (theirs_s, theirs) = made["nvrtc"], made["nvcc"]
        same = "same" if instructions(ours.code) == instructions(theirs.code) else "DIFFERENT"
        told = "" if ours.warnings == theirs.warnings else f", WARNINGS {ours.warnings} {theirs.warnings}"
        registers, spills = f"{ours.registers}/{theirs.registers}", f"{ours.spills}/{theirs.spills}"
        lines.append(f"{name:<28} {ours_s:>8.2f} {theirs_s:>8.2f} {registers:>10} {spills:>8}  {same}{told}")
    return "\n".join(lines)


def timed(compiler: str, code: KernelCode) -> tuple[float, cuda_compiler.Cubin]:
    """Seconds of a core, which other processes of the machine hardly change, and what came of it."""
    os.environ["ATTN_MLIR_CUDA_COMPILER"], os.environ["ATTN_MLIR_CACHE"] = compiler, "off"
    cuda_compiler.compiler_for()  # finds and loads it, once a process
    before = os.times()
    binary = cuda_compiler.compile_code(code)
    return sum(os.times()[:4]) - sum(before[:4]), binary


def instructions(cubin: bytes) -> dict[str, bytes]:
    """The sections of machine code of an ELF file, by their names; of other files, all of it."""
    if cubin[:4] != b"\x7fELF":
        return {"": cubin}
    (offset,), (size, count, names) = struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, offset + size * number) for number in range(count)]
    table = cubin[sections[names][4] :]
    named = {table[section[0] :].partition(b"\0")[0].decode(): cubin[section[4] : section[4] + section[5]] for section in sections}
    return {name: code for name, code in named.items() if name.startswith(".text")}


def pair(compiler: str, mask: str, dim: int, beside: bool) -> float:
    """Seconds for a forward and a backward pass from nothing, with modules and the compiler loaded."""
    os.environ["ATTN_MLIR_CUDA_COMPILER"] = compiler
    cuda_compiler.compiler_for()
    Standard("causal", "f16", 32, "fwd").program()  # what is imported when something is lowered
    driver._PROGRAMS.clear()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ATTN_MLIR_CACHE"] = folder
        start = time.perf_counter()
        forward: Any = Standard(mask, "f16", dim, "fwd").program()
        if beside:
            forward.beside = lambda: Standard(mask, "f16", dim, "bwd").program().binaries()
        forward.binaries()
        if not beside:
            Standard(mask, "f16", dim, "bwd").program().binaries()
        for thread in threading.enumerate():
            if thread.name == "attn-mlir-ahead":
                thread.join()
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
