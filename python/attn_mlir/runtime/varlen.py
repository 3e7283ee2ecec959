"""Programs on packed tensors: what they check and compute besides what those of attentions do."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar

import numpy as np
import torch

from attn_mlir import driver
from attn_mlir.backends.graph_capture import is_captured
from attn_mlir.backends.work import is_said_checked, leaves_rows
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.given import SEQUENCES
from attn_mlir.runtime.checked import is_checked
from attn_mlir.runtime.programs import Program

_SHARE = {"": 1, "fwd": 1, "jvp": 2}
"""How many results a function has for each o, before its first row output."""
_LARGEST: ContextVar[tuple[int, int] | tuple[()] | None] = ContextVar("largest", default=None)
_ANY = 2**31 - 1
"""A size that bounds nothing."""


@dataclasses.dataclass(frozen=True)
class VarlenRun:
    """A compiled program, or one of its derivatives; `rows` numbers results that are -inf for rows of no sequence: logarithms of sums."""

    program: Any
    """A `driver.CompiledFunction`; one for a GPU may have `decode`, for sequences of one query each."""
    rows: tuple[int, ...]
    whole: bool = False
    """Whether it is the attention itself."""
    invariant: bool = False
    """Whether a sequence is computed in one way, whatever else is in the batch."""

    def run(self, inputs: Sequence[Any], layout: str = "bhsd") -> list[torch.Tensor]:
        """See `driver.CompiledFunction.run`."""
        known, made = _LARGEST.get() if self.whole and hasattr(self.program, "decode") else None, None
        if known and known[0] == 1:
            made = self.program.decode(inputs, layout, known[1])
        elif known and self.invariant:
            made = self._apart(inputs, layout, known[1])
        if made is None:
            made = self.program.run(inputs, layout)
        lengths = inputs[3 + SEQUENCES.index("q_lengths")]
        if self.rows and leaves_rows(lengths):
            if lengths.device.type == "cpu":
                end = int(lengths.sum())
                for number in self.rows:
                    made[number][:, :, end:] = -torch.inf
            else:  # without waiting for it
                behind = torch.arange(inputs[0].shape[2], device=lengths.device) >= lengths.sum()
                for number in self.rows:
                    made[number].masked_fill_(behind, -torch.inf)
        return made

    def _apart(self, inputs: Sequence[Any], layout: str, keys: int) -> list[torch.Tensor] | None:
        """Sequences of one query as they are computed where there are no others, and the others; None where both have one kernel."""
        place = 3 + SEQUENCES.index("q_lengths")
        begins, lengths = inputs[3 + SEQUENCES.index("q_begins")], inputs[place]
        single = lengths == 1
        ones, others = single.to(lengths.dtype), torch.where(single, 0, lengths)
        decoded = self.program.decode([*inputs[:place], ones, *inputs[place + 1 :]], layout, keys)
        if decoded is None:
            return None
        made = self.program.run([*inputs[:place], others, *inputs[place + 1 :]], layout)
        count = inputs[0].shape[2]
        rows = torch.zeros(count + 1, dtype=lengths.dtype, device=lengths.device).index_add_(0, begins, ones)[:count] > 0
        seen = rows[None, None]
        return [torch.where(seen[..., None] if a.dim() == 4 else seen, a, b) for a, b in zip(decoded, made, strict=True)]

    def planned(self, inputs: Sequence[Any]) -> "VarlenRun":
        """See `driver.planned`."""
        return VarlenRun(driver.planned(self.program, inputs), self.rows, self.whole, self.invariant)

    def results(self, inputs: Sequence[Any]) -> list[tuple[Any, Any]]:
        """See `driver.CompiledFunction.results`."""
        return self.program.results(inputs)

    def stages(self) -> dict[str, str]:
        """See `driver.CompiledFunction.stages`."""
        return self.program.stages()


@dataclasses.dataclass(eq=False)
class VarlenProgram(Program):
    """A traced attention on packed tensors [1, H, T, D]. Its first captures are those of `frontend.given.SEQUENCES`.

    Where keys lie in pages, k and v are [pages, Hkv, size, D], and the next capture is the table of pages.
    """

    has_kernel: ClassVar[bool] = False
    paged: bool = dataclasses.field(default=False, kw_only=True)
    invariant: bool = dataclasses.field(default=False, kw_only=True)
    """Whether a sequence has the same gradients, bit for bit, whatever else is in the batch."""

    def derivative(self, device: str, function: str, wrt: str) -> VarlenRun:  # type: ignore[override]
        """See `Program.derivative`; the function "" is the attention itself."""
        share = _SHARE.get(function, 0)
        rows = tuple(share * self.weights + i for i, name in enumerate(self.outputs) if share and name == "lse")
        made = super().derivative(device, function, wrt)
        if self.splits or self.invariant:
            made = driver.with_work(made, self.device or device, self.splits, self.invariant)
        return VarlenRun(made, rows, not function, self.invariant)

    def sizes(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, int]:
        """See `Program.sizes`; "pages" is how many there are, Skv then the size of one."""
        return {**super().sizes(q, k, v), "pages": k.shape[0]}

    def check(self, captures: Sequence[Any], sizes: dict[str, int], device: torch.device) -> None:
        """See `Program.check`; offsets must be those of sequences inside the tensors, since kernels trust them.

        On a GPU that waits for the offsets, unless the largest lengths are given (`largest`): then the API has clamped them to the tensors.
        """
        driver.check_packed(self.text, self.device or device.type)
        begins, lengths, key_begins, key_lengths = captures[: len(SEQUENCES)]
        shape = begins.shape
        for tensor in captures[: len(SEQUENCES)]:
            if tensor.dtype != torch.int32 or tensor.dim() != 1 or tensor.shape != shape or tensor.device != device:
                raise ArgumentError(f"cu_seqlens_q, cu_seqlens_k and seqused_k are int32 tensors on {device} for one number of sequences")
        by_length = self.kinds.tensors and self.reads.by_length
        known = _LARGEST.get() if device.type != "cpu" and not by_length else None
        if known:
            super().check(captures, {**sizes, "B": shape[0], "Sq": known[0], "Skv": known[1]}, device)
            return
        queries, keys = read_sequences(captures, sizes, self.paged)
        pairs = [(int(queries.max(initial=0)), int(keys.max(initial=0)))]
        if _LARGEST.get() == ():
            _LARGEST.set(pairs[0])
        if by_length:
            # Where something is read follows from the lengths of one sequence, not from those of several.
            pairs = [(int(a), int(b)) for a, b in np.unique(np.stack([queries, keys]), axis=1).T]
            for a, b in pairs:
                one = [begins, lengths.new_tensor([a]), key_begins, key_lengths.new_tensor([b])]
                super().check([*one, *captures[len(one) :]], {**sizes, "B": len(queries), "Sq": a, "Skv": b}, device)
            return
        for a, b in pairs:
            super().check(captures, {**sizes, "B": len(queries), "Sq": a, "Skv": b}, device)


def read_sequences(given: Sequence[torch.Tensor], sizes: Mapping[str, int], paged: bool) -> tuple[np.ndarray, np.ndarray]:
    """How many queries and keys sequences have, of what lies where `SEQUENCES` and, if keys are `paged`, their table say; waits for it.

    Raises ArgumentError where they lie outside of tensors of these sizes.
    """
    begins, lengths, key_begins, key_lengths = given[: len(SEQUENCES)]
    queries, keys, first, first_key = _on_host(lengths, key_lengths, begins, key_begins)
    _check_sequences("cu_seqlens_q", first, queries, sizes["Sq"], "queries")
    if paged:
        check_pages(given[len(SEQUENCES)].cpu().numpy(), keys, sizes["Skv"], sizes["pages"])
    elif not is_said_checked(key_begins):
        _check_sequences("cu_seqlens_k", first_key, keys, sizes["Skv"], "keys")
    return queries, keys


def _on_host(*tensors: torch.Tensor) -> list[np.ndarray]:
    """What integers of one length are. Raises ArgumentError where a CUDA graph that is being captured would have to wait for them."""
    if is_captured(tensors[0].device):
        raise ArgumentError(
            "a CUDA graph cannot read offsets while it is captured: pass max_q= and max_k=, the largest lengths, and capture no functions "
            "that read tensors at places which follow from q_len() or kv_len()"
        )
    return list(torch.stack(tensors).cpu().numpy())


def reads_offsets(max_q: int | None, max_k: int | None) -> bool:
    """Whether calls on a GPU wait for offsets, to check them: where a largest length is not known, or with `ATTN_MLIR_CHECK=1`."""
    return max_q is None or max_k is None or is_checked()


@contextlib.contextmanager
def largest(max_q: int | None, max_k: int | None) -> Iterator[None]:
    """Within it, these are the largest lengths of sequences, so that nothing waits for a GPU; where one is not known, a check finds out."""
    token = _LARGEST.set(() if reads_offsets(max_q, max_k) else (max_q or 0, max_k or 0))
    try:
        yield
    finally:
        _LARGEST.reset(token)


def check_pages(table: np.ndarray, lengths: np.ndarray, size: int, pages: int) -> None:
    """Checks that a table names pages for as many keys as the sequences have, of `pages` with `size` positions each."""
    _check_used(lengths)
    if not lengths.any():
        return
    if not pages or not size:
        b = int(np.flatnonzero(lengths)[0])
        raise ArgumentError(f"seqused_k[{b}] is {lengths[b]}, but k has no {'positions in its pages' if pages else 'pages'}")
    used = -(-lengths.astype(np.int64) // size)
    over = np.flatnonzero(used > table.shape[1])
    if len(over):
        there = f"block_table has {table.shape[1]} pages of {size} positions for a sequence"
        raise ArgumentError(f"seqused_k[{over[0]}] is {lengths[over[0]]}, but {there}")
    seen = table[:, : int(used.max())]
    wrong = ((seen < 0) | (seen >= pages)) & (np.arange(seen.shape[1]) < used[:, None])
    if wrong.any():
        b, column = (int(x[0]) for x in np.nonzero(wrong))
        raise ArgumentError(f"block_table[{b}, {column}] is {seen[b, column]}, but k has {pages} pages")


def _check_used(lengths: np.ndarray) -> None:
    negative = np.flatnonzero(lengths < 0)
    if len(negative):
        raise ArgumentError(f"seqused_k[{negative[0]}] is {lengths[negative[0]]}: a sequence has no fewer than 0 keys")


def check_offsets(sequences: Mapping[str, torch.Tensor]) -> None:
    """Checks offsets and lengths by themselves, where there are no tensors yet that they are for."""
    arrays = {name: sequences[name].numpy() for name in SEQUENCES}
    _check_sequences("cu_seqlens_q", arrays["q_begins"], arrays["q_lengths"], _ANY, "queries")
    if "block_table" in sequences:
        _check_used(arrays["k_lengths"])
    else:
        _check_sequences("cu_seqlens_k", arrays["k_begins"], arrays["k_lengths"], _ANY, "keys")


def _check_sequences(name: str, begins: np.ndarray, lengths: np.ndarray, size: int, rows: str) -> None:
    """Checks where sequences lie in a tensor of `size` rows."""
    if not len(begins):
        return
    used = " (or seqused_k is negative)" if rows == "keys" else ""
    if begins[0] != 0:
        raise ArgumentError(f"{name} must start at 0, it starts at {begins[0]}")
    ends = begins.astype(np.int64) + lengths
    falls = np.flatnonzero(begins[1:] < begins[:-1])
    if len(falls) or (lengths < 0).any():
        where = int(falls[0]) if len(falls) else int(np.flatnonzero(lengths < 0)[0])
        raise ArgumentError(f"{name} must not fall: sequence {where} would have {begins_to(begins, lengths, where)} {rows}{used}")
    over = np.flatnonzero(ends[:-1] > begins[1:])
    if len(over):
        where = int(over[0])
        there = int(begins[where + 1] - begins[where])
        raise ArgumentError(f"seqused_k[{where}] is {lengths[where]}, but {name} has {there} keys for this sequence")
    if ends[-1] > size:
        raise ArgumentError(f"{name} ends at {ends[-1]}, beyond the {size} {rows} that there are")


def begins_to(begins: np.ndarray, lengths: np.ndarray, where: int) -> int:
    """How many rows a sequence would have."""
    return int(begins[where + 1] - begins[where]) if where + 1 < len(begins) else int(lengths[where])
