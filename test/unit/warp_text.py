"""What printed CUDA must have in common with the kernel that it was printed from; checked without a GPU."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from attn_mlir.backends.nvidia.warp import RULES, fragments, kernel_code
from attn_mlir.backends.nvidia.warp.printer import Rule, WarpPrinter
from attn_mlir.dialects.warp.kinds import bytes_of, swizzle_of
from attn_mlir.dialects.warp.layouts import Fragment
from attn_mlir.mlir import ir

_STATEMENTS = {
    "warp.wait": r"attn::barrier_wait\(",
    "warp.arrive": r"attn::barrier_arrive\(",
    "warp.arrive_expect": r"attn::barrier_arrive_expect\(.*, (\d+)\);",
    "warp.named_sync": r"attn::named_sync\(.*, (\d+)\);",
    "warp.named_arrive": r"attn::named_arrive\(.*, (\d+)\);",
    "warp.fence_async": r"attn::fence_proxy_async\(",
    "warp.copy_commit": r"attn::copy_commit\(",
    "warp.copy_wait": r"attn::copy_wait<(\d+)>",
    "warp.mma": r"attn::multiply<\w+::\w+, \d+, (\d+),",
    "warp.mma_begin": r"attn::wgmma_begin\(",
    "warp.mma_commit": r"attn::wgmma_commit\(",
    "warp.mma_wait": r"attn::wgmma_wait<(\d+)>",
    "warp.store_commit": r"attn::bulk_commit\(",
    "warp.store_wait": r"attn::bulk_wait(?:_read)?<(\d+)>",
}
_NUMBERS = {"warp.arrive_expect": "bytes", "warp.named_sync": "threads", "warp.named_arrive": "threads", "warp.mma_wait": "pending",
            "warp.store_wait": "pending", "warp.copy_wait": "pending"}  # fmt: skip


def check_text(kernel: ir.Operation, rules: dict[str, Rule] = RULES) -> None:
    """Prints a kernel; AssertionError where the text does not say what the IR does. What nvcc finds is not looked for."""
    with checked_yields():
        source = kernel_code(kernel, rules).source
    text = source[source.index('extern "C"') :]
    assert _said(text) == _meant(kernel.regions[0].blocks[0])
    _check_memory(kernel, text)
    _check_places()


@contextmanager
def checked_yields() -> Iterator[None]:
    """Executes what is printed of each yield: AssertionError where a variable gets what another one has only since then.

    The evaluator hands on all values at once, and sees nothing of the order of assignments.
    """
    printed = WarpPrinter.assign_all

    def assign_all(printer: WarpPrinter, targets: Sequence[str], values: Sequence[ir.Value]) -> None:
        begin = len(printer.writer.lines)
        wanted = [printer.source(value) for value in values]
        printed(printer, targets, values)
        assert executed(printer.writer.lines[begin:], targets) == wanted

    with patch.object(WarpPrinter, "assign_all", assign_all):
        yield


def executed(lines: Sequence[str], targets: Sequence[str]) -> list[str]:
    """What variables hold after declarations and assignments, in terms of what they held before."""
    held: dict[str, str] = {}
    for line in map(str.strip, lines):
        found = re.fullmatch(r"(?:for \(.*\) )?(\w+)(?:\[r\])? = (.*?)(?:\[r\])?;", line)
        if found is not None:
            held[found[1]] = re.sub(r"\w+", lambda word: held.get(word[0], word[0]), found[2])
        else:
            assert line == "#pragma unroll" or re.fullmatch(r"\w+ \w+(\[\d+\])?;", line), line
    return [held.get(target.removesuffix("[r]"), target) for target in targets]


def _meant(block: ir.Block) -> list[str]:
    """What orders the accesses of a kernel, as IR has it."""
    found = []
    for op in (view.operation for view in block.operations):
        if op.name in _STATEMENTS:
            number = ir.IntegerAttr(op.attributes[_NUMBERS[op.name]]).value if op.name in _NUMBERS else ""
            if op.name == "warp.mma":
                number = op.operands[2].type.shape[int(ir.BoolAttr(op.attributes["transpose_b"]).value)]
            found.append(f"{op.name} {number}")
        for inner in (b for region in op.regions for b in region.blocks):
            found += _meant(inner)
    return found


def _said(text: str) -> list[str]:
    """The same, as the text has it."""
    found = []
    for line in text.splitlines():
        for name, pattern in _STATEMENTS.items():
            match = re.search(pattern, line)
            if match:
                found.append(f"{name} {match[1] if match.groups() else ''}")
    return found


def _check_memory(kernel: ir.Operation, text: str) -> None:
    """Buffers and barriers lie apart, swizzled ones at multiples of 1024 bytes."""
    begins = [int(n or 0) for n in re.findall(r"const uint32_t \w+ = shared(?: \+ (\d+))?;", text)]
    makers = [v.operation for v in kernel.regions[0].blocks[0].operations if v.operation.name in ("warp.alloc", "warp.mbarrier")]
    end = 0
    assert len(begins) == len(makers)
    for begin, op in sorted(zip(begins, makers, strict=True), key=lambda each: each[0]):
        type_ = op.results[0].type
        barrier = op.name == "warp.mbarrier"
        size = 8 * ir.IntegerAttr(type_.stages).value if barrier else bytes_of(type_)
        assert begin >= end and begin % (8 if barrier else 1024 if swizzle_of(type_) else 4) == 0
        end = begin + size


def _check_places() -> None:
    """The printed row and column of every register of every thread are those that PTX gives for the accumulators of m64nNk16, m16n8k16."""
    for instruction, rows in (("wgmma", 16), ("mma16", 16), ("mma32", 32)):
        tile = Fragment(instruction, "tile", (4 * rows, 72), "f32")
        row, column = (compile(fragments.place(tile, "r", axis).replace("/", "//"), "", "eval") for axis in ("row", "column"))
        for warp in range(4):
            for lane in range(32):
                for r in range(tile.elements):
                    names, block = {"warp": warp, "lane": lane, "r": r}, 16 * (r // 36)
                    at = (rows * warp + block + lane // 4 + 8 * (r // 2 % 2), 8 * (r % 36 // 4) + 2 * (lane % 4) + r % 2)
                    assert (eval(row, {}, names), eval(column, {}, names)) == at
