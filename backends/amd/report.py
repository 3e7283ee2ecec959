"""`attn-translate --to hip --report`: facts of compiled kernels, and what a model says of them. No AMD GPU is involved."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir.backends.amd import codegen, pipeline
from attn_mlir.backends.amd.compile import HipBinary, compile_code
from attn_mlir.backends.amd.isa import IsaMachine
from attn_mlir.backends.amd.isa.disassembly import Instruction
from attn_mlir.backends.amd.model import ASSUMPTIONS, estimate, family, issue_clocks
from attn_mlir.backends.amd.target import TARGETS
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.packing import launch_grid
from attn_mlir.backends.gpu.translations import kernels_of
from attn_mlir.backends.host import KernelGrid, read_kernel
from attn_mlir.backends.program import DTYPES
from attn_mlir.mlir import ir

_LENGTHS = {"rows": 2048, "pairs": 1024, "elements": 1024, "chunks": 512}
"""Of queries and keys in the run that the report counts, by the kind of kernel."""


def to_report(module: ir.Module) -> str:
    """The facts of every kernel of a module. Raises UnsupportedError without clang, or where the interpreter does not know the chip."""
    with module.context:
        kernels = kernels_of(module, pipeline.KERNEL, "AMD")
        texts = [_kernel_report(kernel, codegen.emit(kernel)) for kernel in kernels]
    notes = "\n".join(f"  - {line}" for line in ASSUMPTIONS)
    return "\n".join(texts) + f"\nAll of this is static or a model; no kernel ran on an AMD GPU. The model assumes:\n{notes}\n"


def _kernel_report(function: ir.Operation, code: KernelCode) -> str:
    kernel = _kernel_of(function)
    length = _LENGTHS[kernel.grid]
    arguments = _arguments(function, kernel, length)
    return report_of(code, arguments, launch_grid(code, kernel, arguments), length)


def report_of(code: KernelCode, arguments: Sequence[Any], launch: tuple[tuple[int, int, int], int], length: int) -> str:
    """The facts of a kernel, and of a run of its middle block on these arguments, which it may write; `launch`: see `launch_grid`."""
    binary = compile_code(code)
    machine = IsaMachine(code, binary.code)
    tensors = [number for number, value in enumerate(arguments) if isinstance(value, torch.Tensor)]
    grid, blocks = launch
    machine.run(arguments, tensors, grid, blocks, count_conflicts=True, only_blocks=[(grid[0] // 2, 0, 0)])
    title = f"kernel {code.name} ({code.threads} threads, {code.arch})"
    return "\n".join([title, *_facts(code, binary), *_executed(code, binary, machine, length)])


def _facts(code: KernelCode, binary: HipBinary) -> list[str]:
    """What clang tells."""
    groups = groups_of(code, binary)
    return [
        f"  registers    {binary.vgprs} VGPR + {binary.agprs} AGPR a lane, {binary.sgprs} SGPR a wave; {binary.describe_spills()}",
        f"  LDS          {binary.shared} of {TARGETS[code.arch].lds_bytes} bytes a block",
        f"  occupancy    {binary.waves} waves a SIMD by registers, {groups} blocks of {code.threads // 64} waves a compute unit",
    ]


def groups_of(code: KernelCode, binary: HipBinary) -> int:
    """How many thread blocks a compute unit runs at a time."""
    target, waves = TARGETS[code.arch], code.threads // 64
    by_registers = binary.waves * target.simds // waves
    return max(1, min(by_registers, target.lds_bytes // max(1, binary.shared)))


def _executed(code: KernelCode, binary: HipBinary, machine: IsaMachine, length: int) -> list[str]:
    """What the run of one block tells."""
    body = hot_loop(list(machine.program.values()), machine.counts)
    lines = []
    if body:
        counts, clocks = Counter(family(i.opcode) for i in body), Counter[str]()
        for instruction in body:
            clocks[family(instruction.opcode)] += issue_clocks(instruction.opcode)
        mix = ", ".join(f"{name} {counts[name]}" for name in sorted(counts, key=lambda name: -counts[name]))
        narrow = sum(i.opcode.startswith(("ds_read_u", "ds_read_i")) for i in body)
        total = sum(clocks.values())
        lines.append(f"  hot loop     {len(body)} instructions: {mix}; narrow LDS reads: {narrow}")
        busy = ", ".join(f"{name} {clocks[name]}" for name in ("MFMA", "VALU", "packed f32", "transcendental") if clocks[name])
        lines.append(
            f"  its clocks   {busy}: {clocks['MFMA'] / max(1, total):.2f} of what the units are held is MFMA, a wave alone [model]"
        )
    ratios = conflicts_of(machine)
    for kind in ("read", "write"):
        found = {opcode: ratio for opcode, ratio in ratios.items() if kind in opcode}
        if found:
            words = ", ".join(f"{opcode} {ratio:.2f}x" for opcode, ratio in sorted(found.items()))
            lines.append(f"  LDS {kind + 's':8} {words} of the time without conflicts of banks [executed addresses, model of the banks]")
    groups = groups_of(code, binary)
    made = estimate(machine.trace, code.threads // 64, groups, ratios)
    stalls = ", ".join(f"{name} {count}" for name, count in made.stalls.most_common(3))
    busy = f"matrix units work in {made.matrix:.2f}, vector units in {made.vector:.2f} of {made.clocks} clocks"
    lines.append(f"  time         {busy}, {groups} blocks of length {length} [model]; waves wait for: {stalls or 'nothing'}")
    return lines


def hot_loop(program: Sequence[Instruction], counts: Counter[str]) -> list[Instruction]:
    """The instructions of the loop that has most matrix products; without any, of the longest loop. Inner loops count once."""
    loops = [
        [i for i in program if branch.target <= i.address <= branch.address]
        for branch in program
        if 0 <= branch.target <= branch.address and counts[branch.opcode]
    ]
    return max(loops, key=lambda body: (sum(family(i.opcode) == "MFMA" for i in body), -len(body)), default=[])


def conflicts_of(machine: IsaMachine) -> dict[str, float]:
    """How many times as long as without conflicts of banks accesses to LDS took, by opcode."""
    times: dict[str, float] = defaultdict(float)
    accesses: Counter[str] = Counter()
    for (opcode, ratio), count in machine.conflicts.items():
        times[opcode] += ratio * count
        accesses[opcode] += count
    return {opcode: times[opcode] / accesses[opcode] for opcode in accesses}


def _kernel_of(function: ir.Operation) -> KernelGrid:
    fields = ir.DictAttr(function.attributes["tile.kernel"])
    results = len(ir.ArrayAttr(fields["outputs"])) if "outputs" in fields else 1
    return read_kernel(function, results)


def _arguments(function: ir.Operation, kernel: KernelGrid, length: int) -> list[Any]:
    """Random tensors of one batch and one head, one sequence, zeros for indices and sums, and a scale for numbers."""
    generator = torch.Generator().manual_seed(0)
    values = list(function.regions[0].blocks[0].arguments)
    outputs = len(values) - (kernel.grid == "pairs") - len(kernel.outputs)
    made: list[Any] = []
    for number, value in enumerate(values):
        if number == kernel.sequences:
            made.append(torch.tensor([0, length], dtype=DTYPES[str(ir.MemRefType(value.type).element_type)], device="cpu"))
        elif isinstance(value.type, ir.MemRefType):
            leading = {"store": 0, "accumulate": 1, "scatter": 3}[kernel.outputs[number - outputs]] if number >= outputs else 0
            made.append(_tensor(ir.MemRefType(value.type), leading, length, generator))
        elif kernel.grid == "pairs" and number == len(values) - 1:
            made.append(kernel.block_q)
        else:
            made.append(0.125 if str(value.type).startswith(("f", "bf")) else 1)
    return made


def _tensor(type_: ir.MemRefType, leading: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """Of an argument; dimensions in front of the last two, of which a kernel may read any, are one place of memory."""
    shape = [length if type_.is_dynamic_dim(d) else type_.shape[d] for d in range(type_.rank)]
    is_heads = type_.rank - leading == 4 and not type_.is_dynamic_dim(type_.rank - 1)
    sizes = [1, 1, *shape[-2:]] if is_heads else [1] * max(0, type_.rank - leading - 2) + shape[leading:][-2:]
    dtype = DTYPES[str(type_.element_type)]
    whole = (
        torch.randn(sizes, generator=generator, device="cpu").to(dtype)
        if dtype.is_floating_point
        else torch.zeros(sizes, dtype=dtype, device="cpu")
    )
    return whole if is_heads and not leading else whole.expand(*shape[:leading], *(sizes if is_heads else shape[leading:]))
