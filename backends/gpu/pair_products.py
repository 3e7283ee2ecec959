"""What a driver does beside a kernel whose scores and weights of pairs go through memory, as the kernel's schedule says it."""

import dataclasses
import functools
import json
from dataclasses import dataclass

from attn_mlir.backends import plain
from attn_mlir.backends.gpu.attributes import LAUNCH

PAIRS = f"{LAUNCH}pairs"
"""The choice that says what a driver multiplies: `PairsInMemory` as text."""
ROWS = ("rows", "i", "j", "h", "b", "batches", "heads", "queries", "key_heads", "keys")
"""Numbers that a kernel takes last, of packed tensors after a tensor with the numbers of sequences, the first of a chunk at b there.

They are queries of a chunk, its first query, key, head and batch entry, and the sizes of the whole tensors.
"""
STEP = 8
"""The first key of a chunk, and how many it has, are multiples of it: rows of 16 bits begin at multiples of 16 bytes.

Kernels see the keys of a product as rows of so many.
"""
BEGIN, END = "q_begin", "q_end"
"""Numbers that a range of keys depends on: the queries that see them."""


@dataclass(frozen=True)
class PairSum:
    """A result: the sum over keys ("query", one row for each query) or over queries ("key") of weights times terms, both numbered."""

    kind: str
    terms: tuple[int, ...]
    weights: tuple[int, ...]
    result: int


@dataclass(frozen=True)
class RangeStep:
    """A number: `op` of earlier ones, "const" of itself, "number" of one of `NUMBERS`, "operand" of a step's, "dim" of an operand's axis,
    "element" of an operand at an earlier number.

    "sum" is of a constant, and of pairs of a factor and an earlier number.
    """

    op: str
    args: tuple[int, ...]


@dataclass(frozen=True)
class KeyRange:
    """Where the keys begin and end that a chunk's queries see: numbers of `steps`, which are computed in their order."""

    steps: tuple[RangeStep, ...]
    begin: int
    end: int


NUMBERS = (BEGIN, END, "batches", "heads", "queries", "key_heads", "keys", "b")
"""What a range of keys is computed from, "b" being the number of a sequence of packed tensors."""


@dataclass(frozen=True)
class PairStage:
    """A kernel that sees a chunk's products, by its name, "" being that of the step itself.

    It makes the terms of `reductions`, each in f32, which are reduced to values of rows, or else weights for sums. `kept` numbers what it
    takes first: operands of the step and, behind these, values of rows.
    """

    kernel: str
    kept: tuple[int, ...]
    reductions: tuple[str, ...]
    weights: int

    @property
    def outputs(self) -> int:
        """How many tensors it makes."""
        return len(self.reductions) or self.weights


@dataclass(frozen=True)
class PairsInMemory:
    """What a driver does beside the kernel, which takes the products, the operands `kept`, and numbers, and makes weights and scatters.

    `products` are pairs of a tensor of queries and one of keys, `scatters` the numbers of the results that the kernel makes.
    """

    products: tuple[tuple[int, int], ...]
    kept: tuple[int, ...]
    sums: tuple[PairSum, ...]
    scatters: tuple[int, ...]
    keys: KeyRange | None = None
    """None: all."""
    sequences: tuple[int, ...] = ()
    """Of packed tensors, the operands that tell where queries and keys of each begin, and how many: begins, lengths, begins, lengths."""
    stages: tuple[PairStage, ...] = ()
    """Kernels that see each chunk one after another, in place of the step's own; that one then makes the results `rows`, if any.

    It takes `kept`, which as those of stages are operands and values of rows, tensors [B, Hq, Sq] in f32.
    """
    rows: tuple[int, ...] = ()

    @property
    def weights(self) -> int:
        """How many tensors of weights there are."""
        return 1 + max((weight for each in self.sums for weight in each.weights), default=-1)

    @property
    def outputs(self) -> int:
        """How many tensors the kernel makes."""
        return len(self.rows) or self.weights + len(self.scatters)


def write(described: PairsInMemory) -> str:
    """As text, which `read` reads."""
    return json.dumps(dataclasses.asdict(described), separators=(",", ":"))


@functools.lru_cache(256)
def read(text: str) -> PairsInMemory:
    """The inverse of `write`."""
    return plain.read(PairsInMemory, json.loads(text))
