"""Runs a kernel of a code object: blocks one after another, waves in a random order between barriers."""

import random
from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from attn_mlir.backends.amd.isa import doubles, lanes, masks, matrix, memory, pairs, scalar, shared, vector
from attn_mlir.backends.amd.isa.code_object import CodeObject
from attn_mlir.backends.amd.isa.disassembly import Instruction, disassemble
from attn_mlir.backends.amd.isa.operands import unknown
from attn_mlir.backends.amd.isa.state import LANES, SCRATCH_MARK, GlobalMemory, GlobalTensor, InterpreterError, ThreadBlock, Wave, shuffled
from attn_mlir.backends.amd.isa.vector import Step
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.packed import tensor_of
from attn_mlir.backends.gpu.packing import PackedArguments, values_of

_SHARED_LIMIT = 65536
_ARGUMENTS = 3  # in `code_object._DISPATCH_WORDS`


@lru_cache(maxsize=64)
def _decoded(binary: bytes, arch: str, flush: bool) -> dict[int, tuple[Instruction, Step | None]]:
    """The instructions of a code object that any machine for it has come to, with what they do, which depends on nothing else."""
    return {}


class IsaMachine:
    """The kernel of a code object, decoded.

    `counts` holds how often each opcode was executed by a wave; `conflicts`, where asked for, how often an access of all lanes to shared
    memory took how many times as long as without conflicts of banks; `trace` the instructions of the first wave of the first block.
    """

    def __init__(self, code: KernelCode, binary: bytes, flush: bool = True) -> None:
        """With `flush`, matrix products take and give subnormal numbers as zero. Raises InterpreterError for instructions unknown to it."""
        self.code = code
        self._object = CodeObject(binary)
        self.descriptor = self._object.descriptor(code.entry)
        self.program = disassemble(binary, code.arch)
        self.counts: Counter[str] = Counter()
        self.conflicts: Counter[tuple[str, float]] = Counter()
        self.trace: list[Instruction] = []
        self._flush = flush
        self._steps = _decoded(binary, code.arch, flush)

    def run(
        self,
        arguments: Sequence[Any],
        outputs: Collection[int],
        grid: tuple[int, int, int],
        blocks: int = 0,
        seed: int = 0,
        count_conflicts: bool = False,
        only_blocks: Collection[tuple[int, int, int]] | None = None,
    ) -> int:
        """Runs on tensors of the CPU and numbers, as `EmulatedHipKernel.run`; `only_blocks`: these alone. Returns instructions of waves.

        Raises InterpreterError for accesses out of bounds, races between waves, and instructions that it does not know.
        """
        packed = PackedArguments(values_of(self.code, arguments, blocks))
        regions = [_region(value, n, n in outputs) for n, value in enumerate(map(tensor_of, arguments)) if isinstance(value, torch.Tensor)]
        return self.run_segment(packed.segment(), regions, grid, seed, count_conflicts, only_blocks)

    def run_segment(
        self,
        arguments: bytes,
        regions: Sequence[GlobalTensor],
        grid: tuple[int, int, int],
        seed: int = 0,
        count_conflicts: bool = False,
        only_blocks: Collection[tuple[int, int, int]] | None = None,
    ) -> int:
        """The same on an argument segment as a launch hands it to the GPU, with all memory that the kernel may reach."""
        segment = np.frombuffer(bytearray(arguments) + b"\0" * 256, np.uint8).copy()
        tensors = GlobalMemory()
        tensors.regions = [*regions, GlobalTensor(segment.ctypes.data, segment, False, "the arguments")]
        if self.descriptor.shared > _SHARED_LIMIT:
            raise InterpreterError(f"{self.descriptor.shared} bytes of shared memory, more than there are")
        generator = random.Random(seed)
        executed = 0
        indices = ((x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0]))
        with np.errstate(all="ignore"):
            for index in indices:
                if only_blocks is None or index in only_blocks:
                    conflicts = self.conflicts if count_conflicts else None
                    executed += self._run_group(ThreadBlock(index, self.descriptor.shared, tensors, conflicts), segment, generator)
        return executed

    def _run_group(self, group: ThreadBlock, segment: Any, generator: random.Random) -> int:
        waves = [self._start(group, number, segment) for number in range(-(-self.code.threads // LANES))]
        executed, tracing = 0, not self.trace
        while waves:
            for wave in shuffled(waves, generator):
                executed += self._run_wave(wave, tracing and wave.number == 0)
            ended = [wave for wave in waves if wave.done]
            if ended and len(ended) < len(waves):
                raise InterpreterError(f"kernel {self.code.name}, block {group.index}: some waves end, while others wait at a barrier")
            waves = [wave for wave in waves if not wave.done]
            group.epoch += 1
        return executed

    def _start(self, group: ThreadBlock, number: int, segment: Any) -> Wave:
        """A wave as the hardware starts it."""
        descriptor = self.descriptor
        wave = Wave(group, number, descriptor.private)
        at = 0
        for thing, words in descriptor.user_words():
            if thing == 0:
                wave.s[0:4] = [0, SCRATCH_MARK, 0xFFFFFFFF, 0]
            elif thing == _ARGUMENTS:
                wave.s[at], wave.s[at + 1] = segment.ctypes.data & 0xFFFFFFFF, segment.ctypes.data >> 32
            at += words
        for word in range(descriptor.preloaded):
            wave.s[at] = int(segment.view(np.uint32)[descriptor.preload_offset + word])
            at += 1
        for given, index in zip(descriptor.axes, group.index, strict=True):
            if given:
                wave.s[at] = index
                at += 1
        if descriptor.has_scratch:
            wave.s[at] = 0
        wave.v[0] = np.arange(LANES, dtype=np.uint32) + LANES * number
        if self.code.threads < LANES * (number + 1):
            wave.set_exec((1 << self.code.threads - LANES * number) - 1)
        wave.pc = descriptor.entry
        return wave

    def _run_wave(self, wave: Wave, tracing: bool) -> int:
        """Until a barrier or the end; how many instructions that were."""
        steps, counts, executed = self._steps, self.counts, 0
        while True:
            found = steps.get(wave.pc)
            if found is None:
                found = steps[wave.pc] = self._decode(wave.pc)
            instruction, step = found
            wave.pc += instruction.size
            executed += 1
            counts[instruction.opcode] += 1
            if tracing:
                self.trace.append(instruction)
            if step is None:
                wave.done = instruction.opcode == "s_endpgm"
                return executed
            try:
                step(wave)
            except InterpreterError as error:
                place = f"kernel {self.code.name}, block {wave.group.index}, wave {wave.number}"
                raise InterpreterError(f"{place}: {error}\n  at {instruction.address:#x}: {instruction.text}") from None

    def _decode(self, address: int) -> tuple[Instruction, Step | None]:
        instruction = self.program.get(address)
        if instruction is None:
            raise InterpreterError(f"there is no instruction at {address:#x}")
        if instruction.opcode in ("s_barrier", "s_endpgm"):
            return instruction, None
        for family in (scalar, masks, vector, lanes, pairs, doubles, memory, shared):
            step = family.step(instruction)
            if step is not None:
                return instruction, step
        step = matrix.step(instruction, self._flush)
        if step is None:
            raise unknown(instruction)
        return instruction, step


def _region(tensor: torch.Tensor, number: int, writable: bool) -> GlobalTensor:
    """The memory of a tensor, from its first to its last element."""
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1 if tensor.numel() else 0
    flat = tensor.as_strided((span,), (1,)) if span else tensor.new_zeros(0)
    return GlobalTensor(tensor.data_ptr(), flat.view(torch.uint8).numpy(), writable, f"argument {number}")
