"""Kernels over pairs: backward passes, second backward passes, gradients of captured tensors.

A program has one block of keys of one head. Consumer warpgroups hold 64 keys each: products with queries are [keys, queries], their weights
stay in registers for the sums over queries, and go through shared memory for the sums over keys, which are added to global memory.
"""

from collections.abc import Mapping

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_adder import Adder, turn_tensor
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, check_types, read_kernel
from attn_mlir.backends.nvidia.hopper.pairs_layout import REGISTERS, Layout, plan_layout
from attn_mlir.backends.nvidia.hopper.pairs_step import Consumers
from attn_mlir.backends.nvidia.hopper.pairs_sweep import ColumnWriter, Loader, as_int, check_steps, is_masked, load_keys, staged_values
from attn_mlir.backends.nvidia.hopper.source import header
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_NAMES = ("step", "stage", "parity", "columns", "query", "chunk", "place", "to", "first", "second", "at", "inside", "warp", "barriers")
_NAMES += (
    "store_row",
    "tile_row",
    "add_row",
    "add_chunk",
    "odd_row",
    "key",
    "k",
    "first_column",
    "memory",
    "present",
    "column_float",
)


def plan_pairs(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """The schedule of a kernel of pairs, None where this code generator cannot make it."""
    try:
        layout = _layout(kernel, target, choices)
        _Printer(layout, choices).code()
    except UnsupportedError:
        return None
    fields: Fields = {"kind": "pairs", "stages": layout.stages, "shared": layout.bytes, "warpgroups": layout.warpgroups}
    # Measured: warps of their own pay where programs with later keys have fewer queries.
    adders = layout.warpgroups > 1 and is_masked(layout.kernel)
    fields["adders"] = int(choices.get("adders", adders or bool(choices.get("deterministic"))))
    fields["rotated"] = int(choices.get("rotated", 0))
    if choices.get("deterministic"):
        # Sums over keys are added in turns, for which there is a counter for each block of queries and warpgroup.
        over = Core(kernel, 0).arguments.number(turn_tensor(layout.kernel))
        fields |= {"deterministic": 1, "turn_over": over, "turn_rows": layout.kernel.queries, "turn_parts": layout.warpgroups}
    return fields


def emit_pairs(kernel: ir.Operation, target: NvidiaTarget, schedule: Fields) -> KernelCode:
    """The source of a kernel of pairs, and how to launch it. Raises UnsupportedError for what it cannot print."""
    layout = _layout(kernel, target, schedule)
    return _Printer(layout, schedule).code()


def _layout(kernel: ir.Operation, target: NvidiaTarget, fields: Mapping[str, int | str]) -> Layout:
    found = read_kernel(kernel)
    check_types(found)
    check_steps(found)
    core = _core(found)
    slots = max((len(staged_values(core, step)) for step in found.steps), default=0)
    stages = fields.get("stages")
    return plan_layout(found, target, slots, None if stages is None else int(stages))


def _core(kernel: PairsKernel) -> Core:
    core = Core(kernel.function, kernel.queries)
    for name in _NAMES:
        core.names.fresh(name)
    return core


class _Printer:
    """Prints one kernel."""

    def __init__(self, layout: Layout, fields: Mapping[str, int | str]) -> None:
        self.ordered = bool(fields.get("deterministic", 0))
        layout.rotated = bool(fields.get("rotated", 0)) and not self.ordered
        layout.adders = bool(layout.adds) and (self.ordered or bool(fields.get("adders", 0)))
        self.layout, self.kernel = layout, layout.kernel
        self.core = _core(self.kernel)
        self.name = ir.StringAttr(self.kernel.function.attributes["sym_name"]).value

    def code(self) -> KernelCode:
        """The whole kernel."""
        core, layout = self.core, self.layout
        core.writer.indent = "  "
        self._bind_program()
        self._group()
        self._producer()
        self._consumers()
        body = core.writer.lines
        head = [
            f'extern "C" __global__ void __launch_bounds__({layout.threads}, 1) {self.name}(',
            *(f"    {text}," for text in core.arguments.declarations()),
        ]
        head[-1] = head[-1][:-1] + ") {"
        text = [header(), core.instructions(), core.scalars.helper_source(), *head, *self._prologue(), *body, "}", ""]
        return KernelCode(self.name, self.name, "\n".join(text), core.arguments.parameters(), layout.threads, layout.bytes)

    def _bind_program(self) -> None:
        """A program has one block of keys: a chunk is one block."""
        core, kernel = self.core, self.kernel
        for value in core.arguments.values[:-1]:
            if not isinstance(value.type, ir.MemRefType):
                core.arguments.scalar(value)
        core.scalars.bind(core.arguments.values[-1], str(kernel.keys))
        core.scalars.bind(kernel.key_loop.regions[0].blocks[0].arguments[0], "key0")
        core.names.fresh("key0")

    def _prologue(self) -> list[str]:
        layout, warps = self.layout, 4 * self.layout.warpgroups
        lines = [
            "extern __shared__ __align__(1024) unsigned char memory[];",
            "const uint32_t shared = attn::shared_address(memory);",
            f"const uint32_t barriers = shared + {layout.barriers}; // of the keys; then full and free ones of tiles of queries",
            "const int block = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;",
            "const int warpgroup = attn::warpgroup_index(), warp = attn::warp_index() % 4, lane = threadIdx.x % 32;",
            f"const int key0 = {self.kernel.keys} * block;",
            "if (threadIdx.x == 0) {",
            "  attn::barrier_init(barriers, 1);",
        ]
        for pipe in range(layout.pipes):
            arrivals = 32 if layout.column_slots and pipe == layout.pipes - 1 else 1
            full, free = layout.full(pipe) - layout.barriers, layout.free(pipe) - layout.barriers
            for stage in range(layout.stages):
                lines.append(f"  attn::barrier_init(barriers + {full + 8 * stage}, {arrivals});")
                lines.append(f"  attn::barrier_init(barriers + {free + 8 * stage}, {warps});")
        parts = range(layout.warpgroups if layout.adders else 0)
        lines += [f"  attn::barrier_init(barriers + {layout.added - layout.barriers + 8 * part}, 1);" for part in parts]
        return [f"  {line}" for line in [*lines, "  attn::barrier_init_fence();", "}"]]

    def _group(self) -> None:
        """Keeps the number of heads of a group where it takes no register."""
        core = self.core
        with core.scope("if (threadIdx.x == 0)"):
            core.writer.line(f"attn::store_shared_int(shared + {self.layout.group}, {as_int(core, self.kernel.heads.operands[1])});")
        core.writer.line("__syncthreads();")

    def _producer(self) -> None:
        core, layout, kernel = self.core, self.layout, self.kernel
        more, fewer = REGISTERS[layout.warpgroups]
        with core.scope(f"if (warpgroup == {layout.warpgroups})"):
            if fewer:
                core.writer.line(f"attn::fewer_registers<{fewer}>();")
            with core.scope("if (warp == 0)"):
                load_keys(core, kernel, layout)
                Loader(core, kernel, layout).print()
            if layout.column_slots:
                with core.scope("else if (warp == 1)"):
                    ColumnWriter(core, kernel, layout).print()
            if layout.adders:
                with core.scope(f"else if (warp >= 2 && warp < {2 + layout.warpgroups})"):
                    core.writer.line("const int part = warp - 2; // sums of this warpgroup")
                    Adder(core, kernel, layout, self.ordered).print()
            core.writer.line("return;")
        if more:
            core.writer.line(f"attn::more_registers<{more}>();")

    def _consumers(self) -> None:
        core, layout, kernel = self.core, self.layout, self.kernel
        core.writer.line(
            "const int tile_row = 16 * warp + lane / 4, row = 64 * warpgroup + tile_row, column = 2 * (lane % 4);",
            "const float column_float = column;",
        )
        consumers = Consumers(core, kernel, layout, check_types(kernel))
        with core.scope(None):
            consumers.accumulators()
            core.writer.line("attn::barrier_wait(barriers, 0);")
            consumers.print()
            consumers.sums.free_staging()
            for op in kernel.stores:
                consumers.sums.store(op)
