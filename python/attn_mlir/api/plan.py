"""`plan_varlen(...)`: `attention_varlen` for several calls with one set of query lengths, whose host work is done once."""

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from attn_mlir.api.inputs import ELEMENTS, Problem, check_dims, device_type
from attn_mlir.api.options import Options, check_splits
from attn_mlir.api.rows import softmax
from attn_mlir.api.varlen import batched, check_out, finished
from attn_mlir.api.varlen_inputs import check_largest, inside_of, mask_of, problem_of, sequences_of
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.given import Inputs
from attn_mlir.runtime.call import Call
from attn_mlir.runtime.dispatch import dispatch, needing_gradient, refuse_transformed
from attn_mlir.runtime.orders import all_in_order
from attn_mlir.runtime.programs import program_of
from attn_mlir.runtime.varlen import VarlenRun, check_offsets, largest

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class VarlenPlan:
    """What `plan_varlen` made: `run` computes attention for the planned lengths of queries."""

    _entry: Entry
    _scan: Any
    _captured: Scan
    """What functions captured when it was planned."""
    _run: VarlenRun
    _inputs: Inputs
    _heads: tuple[int, int]
    _offsets: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
    _begins: torch.Tensor
    """cu_seqlens_q as it was planned for."""
    _factor: float
    _options: Options
    _largest: tuple[int, int]
    """The largest lengths of queries and keys."""

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise TypeError("plans hold compiled code and are neither pickled nor copied: call plan_varlen again")

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor | None = None) -> Any:
        """What `attention_varlen` returns for these tensors, with the offsets, lengths and tables as they are now.

        seqused_k, block_table and cu_seqlens_k may have changed in place since, within the caches; on a GPU, where nothing waits for them
        and a CUDA graph may hold the run, cu_seqlens_q, too; what leads outside of tensors is cut off there.
        """
        refuse_transformed((q, k, v), "plans have")
        problem = problem_of(q, k, v, self._inputs.paged)
        self._check(problem)
        inside = inside_of(q, k, self._offsets[3], self._largest)
        single = self._largest[0] == 1 and not (self._options.states or torch.is_grad_enabled())
        sequences = sequences_of(q, *self._offsets, inside, single)
        if not q.is_cuda and not torch.equal(self._offsets[0], self._begins):
            raise ArgumentError("cu_seqlens_q has changed since it was planned for: plan again")
        check_out(out, self._entry.traced.weights)
        found = self._entry.found(self._seen())  # what functions compute of captured tensors, too, is that of this run
        if found is None:
            raise ArgumentError("what functions do with captured tensors has changed with these since it was planned for: plan again")
        values = (*batched(q, k, v), *self._entry.captures(found, self._factor, sequences))
        refuse_transformed(values, "plans have")
        if needing_gradient(values):
            raise UnsupportedError("plans have no gradients: call run under torch.no_grad(), or attention_varlen")
        call = Call(self._entry, problem, values, "bshd", problem.device_type)
        if problem.is_empty:
            return finished(self._entry, dispatch(call), self._options, out)
        with largest(*self._largest):
            program_of(self._entry).check(values[3:], problem.sizes, problem.device)
            results = self._run.run(call.heads_first(), "bshd")
        return finished(self._entry, all_in_order(results, "bshd", self._entry.traced.weights), self._options, out)

    def _seen(self) -> Any:
        """What functions capture now: objects that hold tensors may have others than when it was planned."""
        functions, planned = self._options.functions, self._captured
        if not planned.reusable or (planned.watch is not None and planned.watch.holds(functions)):
            return self._scan
        scan = Scan(functions)
        if scan.key != planned.key:
            raise ArgumentError("what functions capture has changed its kind since it was planned for: plan again")
        return scan

    def _check(self, problem: Problem) -> None:
        """Checks that tensors are such as were planned for."""
        named = ("element", "head_dim", "value_dim")
        pairs = [(name, getattr(self._inputs, name), getattr(problem.inputs, name)) for name in named]
        pairs += [("q_heads", self._heads[0], problem.sizes["Hq"]), ("kv_heads", self._heads[1], problem.sizes["Hkv"])]
        for name, wanted, given in pairs:
            if wanted != given:
                name = "dtype" if name == "element" else name
                raise ArgumentError(f"the plan has {name} {wanted}, and q, k and v have {given}: plan for these")


def plan_varlen(
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None = None,
    *,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    max_q: int | None = None,
    max_k: int | None = None,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    row: Function = softmax,
    score_mod: Function | None = None,
    mask_mod: Function | str | None = None,
    query_mod: Function | None = None,
    key_mod: Function | None = None,
    value_mod: Function | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    return_states: bool = False,
    num_splits: int = 0,
    device: str | torch.device | None = None,
) -> VarlenPlan:
    """Plans `attention_varlen` for tensors of q_heads, kv_heads, head_dim, value_dim (None: head_dim) and dtype: `plan.run(q, k, v)`.

    Functions are traced, kernels compiled, and lists of work made here, for the lengths as they are now. `run` reads offsets, lengths,
    tables and captured tensors in place; numbers that functions capture stay as they were. Keys of few queries are in as many parts as
    lengths had here: where these grow, the last part does, so that bits are those of `attention_varlen` for the planned lengths, and close
    to them for others. No dropout, no gradients. The other arguments are those of `attention_varlen`.

    On a GPU `run` makes lists of work where the offsets are, and waits for nothing. max_q and max_k, by default the largest lengths that
    there are now, are those that runs may have: up to them captured tensors are checked, and keys of single queries are seen in parts.
    """
    mask = mask_of(mask_mod)
    if dtype not in ELEMENTS:
        raise ArgumentError(f"dtype must be float32, float16, bfloat16 or float64, got {dtype}")
    if not isinstance(cu_seqlens_q, torch.Tensor):
        raise ArgumentError(f"cu_seqlens_q must be an int32 tensor, got {type(cu_seqlens_q).__name__}")
    for name, count in (("q_heads", q_heads), ("kv_heads", kv_heads)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ArgumentError(f"{name} must be a positive integer, got {count!r}")
    value_dim = head_dim if value_dim is None else value_dim
    check_dims(head_dim=head_dim, value_dim=value_dim)
    if q_heads % kv_heads:
        raise ArgumentError(f"q_heads is {q_heads}, which is no multiple of kv_heads, {kv_heads}")
    offsets = cu_seqlens_q, cu_seqlens_k, seqused_k, block_table
    sequences = sequences_of(cu_seqlens_q, *offsets)
    check_largest(max_q, max_k, sequences)
    inputs = Inputs(ELEMENTS[dtype], head_dim, value_dim, packed=True, paged=block_table is not None)
    functions = (query_mod, key_mod, value_mod, score_mod, mask, row)
    options = Options(functions, scale, "bshd", return_lse, return_states, splits=check_splits(num_splits))
    entry, scan, factor = options.find(inputs, cu_seqlens_q.device)
    target = cu_seqlens_q.device.type if device is None else device_type(device) or ""
    made = program_of(entry).derivative(target, "", "")  # type: ignore[attr-defined]
    captures = entry.captures(scan, factor, sequences)
    host = {name: tensor.cpu() for name, tensor in sequences.items()}
    check_offsets(host)
    lengths = [int(host[name].max()) if len(host[name]) else 0 for name in ("q_lengths", "k_lengths")]
    most = lengths[0] if max_q is None else max_q, lengths[1] if max_k is None else max_k
    rows = int(sequences["q_lengths"].sum()) if cu_seqlens_q.device.type == "cpu" else 1
    keys = 1 if block_table is not None else max(1, int(sequences["k_lengths"].sum()))
    one = torch.zeros((), dtype=dtype, device=cu_seqlens_q.device)
    shapes = ((1, q_heads, rows, head_dim), (1, kv_heads, keys, head_dim), (1, kv_heads, keys, value_dim))
    planned = made.planned([*(one.expand(shape) for shape in shapes), *captures])  # type: ignore[attr-defined]
    return VarlenPlan(
        entry, scan, Scan(functions), planned, inputs, (q_heads, kv_heads), offsets, cu_seqlens_q.clone(), factor, options, most
    )
