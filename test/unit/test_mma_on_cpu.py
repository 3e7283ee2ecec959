"""What the printer for sm_80 makes of products and copies (attn_mma.cuh), run on the CPU lane by lane; faults in it are found."""

import re
import subprocess
from pathlib import Path

import pytest

from amd_tools import needs_host_clang
from attn_mlir.backends.amd.clang import find_host_clang

HERE = Path(__file__).parent
HEADER = (HERE.parents[1] / "backends" / "nvidia" / "warp" / "attn_mma.cuh").read_text()
FAULTS = {
    "matrices of b in another order": ("lane / 16 * 8 + lane % 8, k, lane / 8 % 2), m)", "lane % 16, k, lane / 16), m)"),
    "keys not transposed": ("else load_matrices_transposed(b.at", "else load_matrices(b.at"),
    "another swizzle": (": own & 7;", ": own & 3;"),
    "rows of a factor written where others lie": ("block + half, to.lane / 4, column", "block + half, to.lane / 8, column"),
    "columns of a factor written where others lie": ("column / 8 % 2) + to.lane", "column / 8 / 2) + to.lane"),
    "a row past the last": ("if (at < 0 || at >= size) continue;", "if (at < 0) continue;"),
    "pairs of other rows": ("2 * c + h % 2, line", "2 * c + h / 2, line"),
    "an addition of the other column": ("lane % 2 ? odd : even", "lane % 2 ? even : odd"),
    "an addition of another row": ("from = 4 * own + lane % 8 / 2", "from = 4 * (own ^ 1) + lane % 8 / 2"),
    "numbers past the last": (
        "copy_4(to + 4 * own, from + (exists ? row + own : 0) * stride, exists)",
        "copy_4(to + 4 * own, from + (row + own) * stride, true)",
    ),
    "the second of two tiles": ("column - First, half", "column, half"),
}
pytestmark = needs_host_clang


FLAGS = ("-x", "c++", "-std=c++20", "-O0", "-w", f"-I{HERE.parents[1]}/backends/amd/emulation")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program includes of C++, read once: it is most of what there is to compile."""
    source = tmp_path_factory.mktemp("cpp") / "library.h"
    source.write_text("\n".join(re.findall(r"#include <.*>", (HERE / "mma_on_cpu.h").read_text())))
    made = source.with_suffix(".pch")
    subprocess.run([find_host_clang(), "-x", "c++-header", *FLAGS[2:], str(source), "-o", str(made)], check=True)
    return made


def fails(header: str, folder: Path, library: Path) -> str:
    """What the program says of a header that is wrong, nothing of one that is right."""
    # Instructions are functions of their own, which mma_on_cpu.h has, too.
    names = r"of_lane|copy_commit|copy_4|copy_16|store_pair|load_matrices_transposed|load_two_\w+|mma_16816|semaphore_\w+"
    text = re.sub(rf"ATTN_DEVICE (?:void|float) (?:{names})\((?:.|\n)*?\n?\}}\n", "", header)
    text = re.sub(r"template <int Pending> ATTN_DEVICE void copy_wait.*\n|#pragma unroll.*\n", "", text)
    assert "asm" not in text
    (folder / "attn_mma_on_cpu.cuh").write_text(text)
    program = folder / "program"
    flags = [*FLAGS, "-include-pch", str(library), f"-I{folder}", f"-I{HERE}"]
    subprocess.run([find_host_clang(), *flags, str(HERE / "mma_on_cpu.cpp"), "-o", str(program), "-lstdc++", "-lm"], check=True)
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert (ran.returncode != 0) == bool(ran.stdout)
    return ran.stdout


def test_products_and_copies_are_exact(tmp_path: Path, library: Path) -> None:
    assert not fails(HEADER, tmp_path, library)


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found(name: str, tmp_path: Path, library: Path) -> None:
    old, new = FAULTS[name]
    assert HEADER.count(old) == 1
    assert "not" in fails(HEADER.replace(old, new), tmp_path, library)
