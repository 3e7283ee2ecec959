"""CUDA text of warpgroup matrix instructions (wgmma, sm_90a) and of products made of them.

An operand in shared memory is stored in swizzle atoms of 64 columns of 16-bit elements, 128-byte swizzled, `atom_bytes` apart (at least
128 bytes a row); each atom starts at a multiple of 1024 bytes. It is "K-major" if its columns run along K (Q, K in Q K^T), "MN-major"
if its rows do (V in P V): those are the transposed (`_ta`, `_tb`) instructions. Operands of 8-bit elements are K-major, in atoms of 128
bytes, of 64 or of 32 (`row_bytes`).
"""

from dataclasses import dataclass

COLUMNS = 64
"""Columns of a swizzle atom."""
ROW_BYTES = 128
"""Bytes of a row of a swizzle atom."""
_K_MAJOR = {ROW_BYTES: "k_major", 64: "k_major_64", 32: "k_major_32"}
"""What makes descriptors of K-major operands, by the bytes of a row."""
STEP = 16
"""Extent along K of one instruction."""
STEP_BYTES = 32
"""The same in bytes, whatever the elements."""
STEPS = {"f16": STEP, "bf16": STEP, "e4m3": STEP_BYTES, "e5m2": STEP_BYTES}
"""By the name of elements, that extent."""


def wgmma_name(n: int, a: str, element: str, transpose_a: bool = False, transpose_b: bool = False) -> str:
    """The name of the wrapper, without its namespace: `wgmma_m64n{n}k16_{ss|rs}_{f16|bf16}[_ta][_tb]`."""
    form = {"shared": "ss", "registers": "rs"}[a]
    return f"wgmma_m64n{n}k{STEPS.get(element, STEP)}_{form}_{element}{'_ta' if transpose_a else ''}{'_tb' if transpose_b else ''}"


def wgmma(n: int, a: str, element: str, transpose_a: bool = False, transpose_b: bool = False) -> str:
    """The wrapper of `wgmma.mma_async` for a 64 x n f32 accumulator: d = a b (+ d if `accumulate`), asynchronous.

    `a`: "shared" (a descriptor) or "registers" (four registers of packed elements); b is a descriptor. `element`: one of `STEPS`.
    ValueError for n that is no multiple of 8 up to 256, another element, or a transposed operand in registers.
    """
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"wgmma has no instruction with n = {n}: n is a multiple of 8 up to 256")
    if element not in STEPS:
        raise ValueError(f"wgmma multiplies {', '.join(STEPS)} here, not {element}")
    turns = STEPS[element] == STEP
    if not turns and (transpose_a or transpose_b):
        raise ValueError("operands of 8-bit elements are K-major")
    if a == "registers" and transpose_a:
        raise ValueError("an operand in registers cannot be transposed")
    count = n // 2
    accumulators = [f"%{i}" for i in range(count)]
    rows = [", ".join(accumulators[i : i + 16]) for i in range(0, count, 16)]
    first = f"%{count}" if a == "shared" else "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
    used = count + (1 if a == "shared" else 4)
    turned = [transpose_a, transpose_b] if a == "shared" else [transpose_b]
    flags = ", ".join(["1", "1", *(str(int(flag)) for flag in turned if turns)])
    parameters = "uint64_t a" if a == "shared" else "uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3"
    operands = '"l"(a)' if a == "shared" else '"r"(a0), "r"(a1), "r"(a2), "r"(a3)'
    outputs = [f'"+f"(d[{i}])' for i in range(count)]
    lines = [
        f"__device__ __forceinline__ void {wgmma_name(n, a, element, transpose_a, transpose_b)}("
        f"float (&d)[{count}], {parameters}, uint64_t b, int accumulate) {{",
        f'  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{used + 1}, 0;\\n"',
        f'               "wgmma.mma_async.sync.aligned.m64n{n}k{STEPS[element]}.f32.{element}.{element} "',
        *(f'               "{"{" if i == 0 else " "}{row}{"}, " if i == len(rows) - 1 else ","}"' for i, row in enumerate(rows)),
        f'               "{first}, %{used}, p, {flags};\\n}}"',
        *(
            f"               {': ' if i == 0 else '  '}{', '.join(outputs[i : i + 8])}{',' if i + 8 < count else ''}"
            for i in range(0, count, 8)
        ),
        f'               : {operands}, "l"(b), "r"(accumulate));',
        "}",
    ]
    return "namespace attn {\n" + "\n".join(lines) + "\n} // namespace attn\n"


@dataclass(frozen=True)
class SharedOperand:
    """Where an operand of a product lies in shared memory.

    `address`: a C++ expression of the 32-bit address of the first swizzle atom. `atom_bytes`: from one to the next. `mn_major`: rows of the
    atoms run along K, columns along M (or N). `start`: the first row (K-major, a multiple of 8) or column (MN-major, a multiple
    of 64) of M or N that is read, a number; where it is an expression add `row * 128` or `column / 64 * atom_bytes` to `address`.
    `row_bytes` of a swizzle atom: 128, or 64 or 32 of 8-bit elements.
    `beside`: the address of 16 rows that stand beside every 16 rows of an MN-major operand of one swizzle atom, behind it in memory.
    """

    address: str
    atom_bytes: int
    mn_major: bool = False
    start: int = 0
    beside: str = ""
    row_bytes: int = ROW_BYTES

    def base(self) -> str:
        """The descriptor at k = 0, a C++ expression."""
        if self.beside:
            return f"attn::mn_major_beside({self.address}, {self.beside})"
        shift = self.start // COLUMNS * self.atom_bytes if self.mn_major else self.start * self.row_bytes
        address = f"{self.address} + {shift}" if shift else self.address
        if self.mn_major:
            return f"attn::mn_major({address}, {self.atom_bytes})"
        return f"attn::{_K_MAJOR[self.row_bytes]}({address})"

    def step_bytes(self, step: int) -> int:
        """How far the instruction number `step` along K (32 bytes each) is from k = 0."""
        if self.mn_major:
            return step * STEP * ROW_BYTES
        atom, within = divmod(step * STEP_BYTES, self.row_bytes)
        return atom * self.atom_bytes + within


def product(
    accumulator: str,
    n: int,
    k: int,
    a: SharedOperand | str,
    b: SharedOperand,
    element: str,
    *,
    clear: bool | str = False,
    prefix: str = "",
    held: tuple[str, int] = ("", 0),
) -> list[str]:
    """The statements that start `accumulator` (64 x n) += a (64 x k) b (k x n); fences, commit and wait are the caller's.

    `a`: in shared memory, or the name of an array of packed registers: step s reads elements 4 s to 4 s + 3. `clear`: True to
    overwrite the accumulator, or a C++ condition to do so. Extra temporaries are named with `prefix`. `held`: an array of packed registers
    that have a's first steps, and how many. ValueError if k is no multiple of what one instruction takes.
    """
    extent = STEPS.get(element, STEP)
    if k % extent:
        raise ValueError(f"a product of {element} advances by {extent} along K: {k} is no multiple")
    form = "registers" if isinstance(a, str) else "shared"
    function = "attn::" + wgmma_name(n, form, element, form == "shared" and not isinstance(a, str) and a.mn_major, b.mn_major)
    of_held = "attn::" + wgmma_name(n, "registers", element, False, b.mn_major)
    lines = [] if isinstance(a, str) else [f"const uint64_t {prefix}a = {a.base()};"]
    lines.append(f"const uint64_t {prefix}b = {b.base()};")
    for step in range(k // extent):
        name = held[0] if step < held[1] else a
        if isinstance(name, str):
            first = ", ".join(f"{name}[{4 * step + i}]" for i in range(4))
        else:
            first = _advanced(f"{prefix}a", name, step)
        accumulate = "1" if step or clear is False else "0" if clear is True else f"!({clear})"
        lines.append(
            f"{of_held if step < held[1] else function}({accumulator}, {first}, {_advanced(f'{prefix}b', b, step)}, {accumulate});"
        )
    return ["{", *(f"  {line}" for line in lines), "}"]


def _advanced(descriptor: str, operand: SharedOperand, step: int) -> str:
    offset = operand.step_bytes(step)
    return f"attn::{'advance_beside' if operand.beside else 'advance'}({descriptor}, {offset})" if offset else descriptor
