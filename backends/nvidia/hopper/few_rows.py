"""Kernels of a few sequences of single queries with lists of keys: all in one launch.

A cluster of thread blocks has a sequence, or a block of its rows, each a part of its keys. Each makes its part of the list ready
(`attn_few.cuh`), writes partial results, and, once all have, merges some of the rows, with the function that is else a kernel of its own
(`gpu.simt.merge`). So nothing is left between calls, and results do not depend on which thread block is the last one.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.kernel import FEW, KernelParameter
from attn_mlir.backends.nvidia.device_helpers import text_of
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.tiles import ROWS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

WAVE, _MERGING = 32, 7
"""Threads that merge a row, and the named barrier at which they wait for parts."""
SORTED_BYTES = 64 << 10
"""Of tiles in shared memory, in which lists are sorted before these are loaded."""
HELPERS = ("lists/attn_places.cuh", "lists/attn_few.cuh")
NAME, STRUCTURE = "attention_few", "AttnFew"
_PARTS, _MERGE = "attention_parts", "/* the merge of row few_row */"
"""What `joined` replaces."""
_OWN = "few_begin", "few_one", "few_zero", "few_used", "few_pages", "few_item"
"""Where a sequence's query is, how many there are, its first key, how many keys it sees, its pages, and its item of a list of work."""


class FewRows:
    """Prints what a kernel of parts has besides. Its tensors about sequences are variables of a thread block."""

    def __init__(self, core: Core) -> None:
        self.core = core
        core.arguments.own, core.parts_in_cluster = own_arguments(core.kernel), True

    def declarations(self, threads: int) -> list[str]:
        """What all `threads` do first: they make the list ready, and know where everything is."""
        arguments = self.core.arguments
        arguments.structure("few", STRUCTURE)
        return [
            "const int few_part = attn::cluster_rank(), few_parts = few.parts, few_sequence = blockIdx.x / few_parts / few.row_blocks;",
            f"const int few_first = blockIdx.x / few_parts % few.row_blocks * {ROWS}, few_keys = few_part * few.length;",
            "const int few_end = few_part + 1 == few_parts ? few.lists.count * few.lists.keys : few_keys + few.length;",
            "const long long few_stride = few.lists.count * (few.lists.sequences ? few.lists.each : 1);",
            f"const int few_seen = attn_list_part<{threads}>(",
            "    few.lists, reinterpret_cast<int *>(memory), few_sequence, few_keys, few_end);",
            "attn::fence_proxy_async();",  # TMA writes to where the list was sorted
            "__syncthreads();",  # pages are written
            "int few_begin[1] = {few_sequence}, few_one[1] = {1}, few_zero[1] = {0}, few_used[1] = {few_seen};",
            "int *const few_pages = few.lists.pages;",
            f"const int few_rows_end = min(few_first + {ROWS}, few.rows), few_own = few_sequence * few_parts + few_part;",
            "int few_item[6] = {few_sequence, few_first, few_rows_end, few_own, few_keys, few_end};",
            *arguments.own_declarations(_stride),
        ]

    def merge(self, warps: int) -> None:
        """What so many warps of consumers do last."""
        writer = self.core.writer
        # All parts are written. A thread block without a cluster waits for its consumers alone, as the producer may have ended.
        writer.line("if (few_parts > 1)", "  attn::cluster_sync();", "else", f"  attn::named_sync({_MERGING}, {32 * warps});")
        writer.line(f"const int few_rows = min(few.rows - few_first, {ROWS});")
        begin, step = f"few_part + few_parts * (threadIdx.x / {WAVE})", f"{warps} * few_parts"
        with writer.block(f"for (int few_row = {begin}; few_row < few_rows; few_row += {step})"):
            writer.line(
                "const int few_from = few_sequence * few_parts;",
                "int few_item[6] = {few_sequence, few_first + few_row, few_first + few_row + 1, few_from, few_parts, 0};",
                _MERGE,
            )


def _stride(variable: str, dim: int) -> str:
    """That of one of `_OWN`."""
    if variable == "few_pages" and dim == 0:
        return "few_stride"
    return "1" if dim == 1 else "0"


def own_arguments(kernel: ir.Operation) -> dict[int, str]:
    """Which arguments of a kernel of parts are which of `_OWN`. Raises UnsupportedError where its keys do not lie in pages."""
    facts = ir.DictAttr(kernel.attributes["tile.kernel"])
    if "table" not in facts or "begins" not in facts:
        raise UnsupportedError("hopper: a few queries have lists of keys, which are pages")
    begins, lengths = (list(ir.DenseI64ArrayAttr(facts[name])) for name in ("begins", "lengths"))
    last = len(kernel.regions[0].blocks[0].arguments) - 1
    places = begins[0], lengths[0], begins[1], lengths[1], ir.IntegerAttr(facts["table"]).value, last
    return dict(zip(places, _OWN, strict=True))


def joined(parts: GpuKernel, merge: GpuKernel, own: Mapping[int, str]) -> GpuKernel:
    """One kernel of one of parts, as `FewRows` prints it, and a function that merges (`simt.emit_inside`).

    Its arguments are inputs, partial results, results, and an `AttnFew`. `own`: see `own_arguments`. Raises UnsupportedError.
    """
    code, inside = parts.code, merge.code
    if code.shared_bytes < SORTED_BYTES + 4096:
        raise UnsupportedError(f"hopper: tiles of {code.shared_bytes} bytes have no room to sort lists in")
    last = max(own)  # of the arguments of parts
    work = last + len(merge.outputs)  # of those of the merge, and the structure's place
    declared = _declared(inside.source, rf"void {inside.entry}\(int merge_thread, int merge_head, ")
    names = dict(zip(map(_key, code.parameters), _declared(code.source, rf"{code.entry}\(\s*"), strict=True))
    names = {key: declaration.split()[-1].lstrip("*") for key, declaration in names.items()}
    more: dict[tuple[str, int, int], tuple[KernelParameter, str]] = {}
    given = []
    for parameter, declaration in zip(inside.parameters, declared, strict=True):
        variable = "few_item" if parameter.argument == work else own.get(parameter.argument) if parameter.argument < last else None
        key = _key(parameter)
        if variable is not None:
            given.append(variable if parameter.kind == "pointer" else _stride(variable, parameter.dim))
        elif key in names:
            given.append(names[key])
        else:
            type_ = declaration.rpartition(" ")[0] + (" *" if "*" in declaration else "")
            more[key] = parameter, f"{type_.strip()} merged_{len(more)}"
            names[key] = f"merged_{len(more) - 1}"
            given.append(names[key])
    structure = f"const __grid_constant__ {STRUCTURE} few"
    taken = ",\n    ".join([*(text for _, text in more.values()), structure])
    before, head, rest = code.source.partition('extern "C" __global__')
    function = (head + rest).replace("__restrict__ ", "").replace(structure, taken).replace(_PARTS, NAME)
    call = f"merging::{inside.entry}(threadIdx.x % {WAVE}, (int)blockIdx.y, {', '.join(given)});"
    text = f"{before}{text_of(*HELPERS)}namespace merging {{\n{inside.source}}}\n{function.replace(_MERGE, call)}"
    parameters = [*code.parameters[:-1], *(parameter for parameter, _ in more.values()), KernelParameter("bytes", work)]
    made = replace(code, name=NAME, entry=NAME, source=text, parameters=tuple(parameters), grid=FEW)
    return GpuKernel(replace(parts.kernel, name=NAME), made, parts.schedule, (*parts.outputs, *merge.outputs))


def _key(parameter: KernelParameter) -> tuple[str, int, int]:
    return parameter.kind, parameter.argument, parameter.dim


def _declared(source: str, before: str) -> list[str]:
    """The declarations of a function's parameters; `before` matches what stands in front of them. Raises UnsupportedError."""
    found = re.search(before + r"([^)]*)\) \{", source)
    if found is None:
        raise UnsupportedError("hopper: a function without parameters")
    return re.split(r",\s+", found[1])
