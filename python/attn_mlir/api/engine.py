"""`AttentionEngine`: attention of the user's own design, in the form of score_mod, mask_mod and an OnlineFunc."""

from collections.abc import Callable
from typing import Any, Never

import torch
from torch._C._functorch import maybe_current_level
from torch.compiler import is_dynamo_compiling

from attn_mlir.api.autocast import cast
from attn_mlir.api.custom_io import CustomIO, check_custom
from attn_mlir.api.describe import explain_online, slow_of
from attn_mlir.api.dropout import check_p, dropout_of, scale_of, seed_in_graph
from attn_mlir.api.engine_arguments import (
    captures_with,
    check_backend,
    check_external,
    compare_written,
    custom_of,
    device_of,
    has_backward,
    mask_of,
    target_of,
    without_backward,
    working_dtypes,
)
from attn_mlir.api.engine_module import EngineModule
from attn_mlir.api.extern_masks import NAME, blocks_of, fitting, table_of, with_blocks
from attn_mlir.api.given_masks import GivenBlocks, Mask, check_sizes, is_block_mask, sizes_of
from attn_mlir.api.graph_tape import GraphEngine, call_in_graph, graph_values
from attn_mlir.api.inputs import Layout, Problem, check_inputs, layout_of, problem_of
from attn_mlir.api.meta import Shapes
from attn_mlir.api.online_func import OnlineFunc, check_online_func, writes_backward
from attn_mlir.api.online_rows import Identity
from attn_mlir.api.reports import AttentionReport
from attn_mlir.api.shared_kv import join
from attn_mlir.api.tuning import tuning_of
from attn_mlir.api.unknown_arguments import unexpected, unexpected_in_call
from attn_mlir.api.watched import guarded
from attn_mlir.errors import ArgumentError, TraceError
from attn_mlir.frontend.cache import Entry, TraceCache
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.dropout import NAMES, DropoutForm
from attn_mlir.frontend.online import OnlineDefinition, trace_online
from attn_mlir.philox import threshold
from attn_mlir.runtime.call import Call
from attn_mlir.runtime.dispatch import dispatch, needing_gradient
from attn_mlir.runtime.orders import heads_first, in_order, input_order, output_order

Function = Callable[..., Any]
_CACHE = TraceCache()


class AttentionEngine(GraphEngine, AttentionReport, EngineModule):
    """o_i = epilogue(sum_j p_ij v_j), p = online_func(score_mod(query_mod(q_i) . key_mod(k_j))) over the keys that the mask keeps.

    qkv_meta: meta_tensor(B, H, S, D) for q, k and v. custom_fwd_inputs: a CustomIO with the further inputs of a call.
    score_mod(score, custom_fwd_inputs, b, h, q_idx, kv_idx): the changed score; there is no scale but what it does.
    mask_mod(b, h, q_idx, kv_idx), or the same as block_mask=, or create_block_mask(...) as block_mask=, or a string
    as `masks.parse` takes it: true where a key is present. online_func: an instance of an OnlineFunc; None: the scores are the weights.
    query_mod, key_mod, value_mod: elementwise, f(x) or f(x, custom_fwd_inputs), optionally followed by b, h, idx, d.

    A masked key is absent: it enters no reduction and has no weight. So `mask_value` "-inf" and "0" mean the same here.
    The functions are traced when the object is made, so mistakes in them show at once. Which blocks a mask leaves out
    is derived from the mask itself: infer_mask need not be set.

    extern_block_mask=True: calls bring a tensor, block_mask=[B, H, blocks of queries, blocks of keys], whose zeros leave out blocks of
    infer_mask_block_M x infer_mask_block_N; later calls without one use the last. block_mask=tensor here: the same for all calls.
    kv_shared=True: calls are mod(q, q_pe, kv, k_pe, *custom), where a key is kv and k_pe and its value kv, or mod(q, kv_cache).

    Gradients of q, k, v and the custom inputs come from `forward` and `backward` of online_func where it defines them, else
    they are derived. check=True compares the two in float64 on random scores, and so `combine`, and warns where they differ.
    deterministic=True: gradients have the same bits in every run, which takes more time on a GPU. dropout_p: see `attention`; a call can
    have another one, and gives the seed.

    Under torch.autocast q, k and v are cast to the dtype of qkv_meta.

    layout: the order of dimensions of q, k, v and o, "bshd", "bhsd" or "sbhd", or two of them as in `attention`.

    tune, tune_bwd: the first call of each kind measures kernels of the forward and of the backward pass, on devices whose backend has a
    tuner. tune_file, tune_file_bwd: where that is kept; what these files hold is used in any case. Lengths share a result up to the next
    power of two. Inside torch.compile nothing is measured: what the last call outside of it found is used.
    """

    _subject, _custom_argument = "of_engine", "custom_fwd_inputs"

    def __init__(
        self,
        qkv_meta: Any,
        custom_fwd_inputs: CustomIO | None = None,
        score_mod: Function | None = None,
        mask_mod: Mask = None,
        online_func: OnlineFunc | None = None,
        mask_value: str = "-inf",
        device: Any = None,
        backend: str | None = None,
        tune: bool = False,
        tune_file: str = "",
        tune_bwd: bool = False,
        tune_file_bwd: str = "",
        infer_mask: bool = True,
        infer_mask_block_M: int = 128,
        infer_mask_block_N: int = 128,
        extern_block_mask: bool = False,
        kv_shared: bool = False,
        block_mask: GivenBlocks = None,
        query_mod: Function | None = None,
        key_mod: Function | None = None,
        value_mod: Function | None = None,
        check: bool = False,
        deterministic: bool = False,
        layout: Layout = "bshd",
        dropout_p: float = 0.0,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unexpected(AttentionEngine, unknown)
        self._begin(locals())
        self._layout, self._given = layout_of(layout), layout if isinstance(layout, str) else tuple(layout)
        self._shapes = Shapes(qkv_meta, layout=f"[{', '.join(input_order(self._layout).upper())}]")
        self._custom = custom_of(custom_fwd_inputs, "custom_fwd_inputs")
        self._online = check_online_func(Identity() if online_func is None else online_func)
        check_external(self._online, self._custom)
        if mask_value not in ("-inf", "0"):
            raise ArgumentError(f'mask_value is "-inf" or "0", got {mask_value!r}')
        check_backend(backend)
        self._shared = bool(kv_shared)
        if self._shared and self._layout != layout_of("bshd"):
            raise ArgumentError(f'kv_shared=True takes layout="bshd", got {layout!r}')
        self._device = device_of(device)
        self._tuning = tuning_of((bool(tune), tune_file), (bool(tune_bwd), tune_file_bwd))
        self._deterministic = bool(deterministic)
        self.dropout_p = check_p(dropout_p)
        self._dropout: DropoutForm | None = None
        mask = mask_of(mask_mod, block_mask)
        has_blocks = bool(extern_block_mask) or isinstance(block_mask, torch.Tensor)
        self._blocks = blocks_of(infer_mask_block_M, infer_mask_block_N) if has_blocks else None
        self._extern = bool(extern_block_mask)
        table = table_of(block_mask, self._blocks) if self._blocks is not None and isinstance(block_mask, torch.Tensor) else None
        self.register_buffer("block_mask", table, persistent=False)
        if self._blocks is not None:
            mask = with_blocks(self._blocks, mask)
        self._sizes = [sizes_of(given) for given in (mask_mod, block_mask) if is_block_mask(given)]
        self._functions = (query_mod, key_mod, value_mod, score_mod, mask, self._online.online_fwd, self._online.online_fwd_epilogue)
        states, outputs = self._online.online_rowscales, self._online.final_rowscales
        self._states = {name: scalar.initial for name, scalar in states.items()}
        self._outputs = tuple(outputs)
        self._form = (self._shapes.inputs, self._custom.scan_key(), tuple(self._states.items()), self._outputs)
        self._names = (*self._custom.input_tensors, *([NAME] if has_blocks else []))
        more = (torch.int8,) if has_blocks else ()
        self._dtypes = (*working_dtypes(len(self._custom.input_tensors), lambda dtypes: self._find((*dtypes, *more), None)), *more)
        self._written = (self._online.forward, self._online.backward) if has_backward(self._online) else ()
        tuned = None if self._tuning is None else id(self._tuning)
        watched = (self._functions, (*self._functions, *self._written)) if self._written else (self._functions,)
        places = {"custom": self._names, "dropout": NAMES}
        self._watch((self._form, self._device, self._deterministic, tuned), places, *watched)
        if check:
            compare_written(self._online, self._custom)
        self._end()

    def forward(self, q: Any, k: Any, v: Any = None, *custom: Any, **options: Any) -> Any:
        """`attend`; with kv_shared=True the call is (q, q_pe, kv, k_pe, *custom), or (q, kv_cache), which gives (o, lse)."""
        if self._captured and (current := self.current()) is not self:
            return current.forward(q, k, v, *custom, **options)
        return self._with_shared(q, k, v, custom, options) if self._shared else self.attend(q, k, v, *custom, **options)

    def attend(
        self,
        q: Any,
        k: Any,
        v: Any,
        *custom: Any,
        block_mask: Any = None,
        return_rowscales: bool = False,
        dropout_p: float | None = None,
        dropout_seed: Any = None,
        **unknown: Never,
    ) -> Any:
        """o, [B, Sq, H, Dv], for q [B, Sq, H, D], k [B, Skv, Hkv, D], v [B, Skv, Hkv, Dv] and the custom inputs in order.

        Another `layout` orders the dimensions of q, k, v and o otherwise.
        With return_rowscales=True also the final_rowscales, a dictionary of tensors [B, H, Sq], without dropout. block_mask: see
        extern_block_mask.
        dropout_p: that of this call, in place of the engine's. dropout_seed: see `attention`.
        """
        if unknown:
            raise unexpected_in_call(AttentionEngine, self.attend, unknown)
        dropout_p = self.probability(dropout_p)
        q, k, v = cast(q, k, v, dtype=self._shapes.dtype)
        if is_dynamo_compiling():
            return self._in_graph((q, k, v), custom, block_mask, return_rowscales, (dropout_p, dropout_seed))
        problem = check_inputs(q, k, v, self._given)
        dropout = dropout_of(dropout_p, dropout_seed, q)
        self.__dict__["_dropout"] = dropout.form  # without what modules do where attributes are set
        self._shapes.check(problem, q.dtype)
        table = self._check_mask(block_mask, problem)
        named = check_custom(self._custom.input_tensors, custom, problem)
        if table is not None:
            named[NAME] = table
        target = target_of("AttentionEngine", self._device, problem)
        dtypes = tuple([tensor.dtype for tensor in named.values()])
        if dtypes != self._dtypes:
            self._dtypes = dtypes
        entry, scan = self._find(dtypes, problem.device, False, dropout.form)
        captures = captures_with(named, entry, scan, dropout.values)
        if needing_gradient((q, k, v, *captures)):
            try:
                entry, scan = self._find(dtypes, problem.device, True, dropout.form)
                captures = captures_with(named, entry, scan, dropout.values)
            except TraceError as error:  # the backward pass that the user wrote cannot be used: told when it is asked for
                with torch.no_grad():
                    dropping = {"dropout_p": dropout_p, "dropout_seed": tuple(dropout.values.values())[:2] or None}
                    o, rows = self.attend(q, k, v, *custom, block_mask=block_mask, return_rowscales=True, **dropping)
                o, *results = without_backward([o, *rows.values()], (q, k, v, *captures), error)
                return (o, dict(zip(self._outputs, results, strict=True))) if return_rowscales else o
        call = Call(entry, problem, (q, k, v, *captures), self._layout, target, self._deterministic)
        if self._tuning is not None:
            call = call._replace(entry=self._tuning.entry(call))
        o, *results = dispatch(call)
        return (o, dict(zip(self._outputs, results, strict=True))) if return_rowscales else o

    def _in_graph(
        self, qkv: tuple[Any, Any, Any], custom: tuple[Any, ...], block_mask: Any, return_rowscales: bool, dropout: tuple[float, Any]
    ) -> Any:
        """The same inside torch.compile; `dropout` is its probability and seed."""
        from attn_mlir.api.compiled import in_transform, outside

        (q, k, v), (dropout_p, dropout_seed) = qkv, dropout
        if in_transform():
            options = {"block_mask": block_mask, "return_rowscales": return_rowscales, "dropout_p": dropout_p, "dropout_seed": dropout_seed}
            return outside(self.attend, q, k, v, *custom, **options)
        problem = problem_of(q, k, v, self._given)
        self._shapes.check(problem, q.dtype)
        check_custom(self._custom.input_tensors, custom, problem)
        target_of("AttentionEngine", self._device, problem)
        table = self._check_mask(block_mask, problem)
        custom = custom if table is None else (*custom, table)
        self._look_again()
        leaves = [read() for read in self._accessors[0] if read is not None]
        backward = torch.is_grad_enabled() and any([isinstance(x, torch.Tensor) and x.requires_grad for x in (q, k, v, *custom, *leaves)])
        which = 1 if backward and self._written else 0
        guarded(self._watched[which])
        seed = seed_in_graph(dropout_p, dropout_seed, q)
        dropping = [*seed, threshold(float(dropout_p)), scale_of(float(dropout_p))] if seed else []
        asked = backward, ("tensor", "tensor") if seed else None
        _, name, sources, needed, steps = self._graph_program(which, q.device.type, asked, *[t.dtype for t in custom])
        given = {"custom": custom, "dropout": dropping}
        values = graph_values(sources, needed, self._steps[steps], self._accessors[which], given)
        turned = [heads_first(tensor, input_order(self._layout)) for tensor in (q, k, v)]
        results = call_in_graph(turned, values, sources, name, self._layout)
        o = in_order(results[0], output_order(self._layout))
        return (o, dict(zip(self._outputs, results[1 : 1 + len(self._outputs)], strict=True))) if return_rowscales else o

    def _traced(self) -> Entry:
        return self._find(self._dtypes, None, dropout=self._dropout)[0]

    def explain(self) -> str:
        """How it is computed: the online program as it is written, the row that it comes to with its merge rule, and the backward pass."""
        name, problem = type(self._online).__name__, ""
        entry = forward = self._traced()
        try:
            entry = self._find(self._dtypes, None, True, self._dropout)[0]
        except TraceError as error:
            problem = f"\nthe backward that {name} writes cannot be used: {error}\n"
        return explain_online(entry.traced, name) + problem + "".join(dict.fromkeys(map(slow_of, (forward, entry))))

    def _find(
        self, dtypes: tuple[torch.dtype, ...], device: Any, backward: bool = False, dropout: DropoutForm | None = None
    ) -> tuple[Entry, Scan]:
        """`backward`: also what the user wrote of the backward pass. It is not traced before a gradient is asked for."""
        written = self._written if backward and writes_backward(self._online) else ()

        def trace() -> Any:
            query_mod, key_mod, value_mod, score_mod, mask_mod, online_fwd, epilogue = self._functions
            named = dict(zip(self._names, dtypes, strict=True))
            program = OnlineDefinition(
                online_fwd, epilogue, self._states, self._outputs, type(self._online).__name__,
                score_mod, mask_mod, query_mod, key_mod, value_mod, self._custom, named, *(written or (None, None)), dropout,
            )  # fmt: skip
            return trace_online(program, self._shapes.inputs, device)

        return _CACHE.find((*self._functions, *written), (self._form, dtypes, dropout), trace)

    def _check_mask(self, block_mask: Any, problem: Problem) -> torch.Tensor | None:
        """The tensor of blocks that a call works with, which later calls use, too. A mask function with sizes is held to them."""
        blocks = self._blocks
        if blocks is None or not self._extern:
            if block_mask is not None and not (is_block_mask(block_mask) and block_mask.mask_mod is self._functions[4]):
                raise ArgumentError("this AttentionEngine takes no block mask with the call: make it with extern_block_mask=True")
            for sizes in self._sizes if block_mask is None else [sizes_of(block_mask)]:
                check_sizes(sizes, problem.sizes)
        if blocks is None:
            return None
        if self._extern and block_mask is not None:
            table = table_of(block_mask, blocks, problem.device)
            fitted = fitting(table, blocks, problem)
            # Tensors of a transform mean nothing after it: who calls then without a mask is told.
            self.block_mask = None if maybe_current_level() is not None else table
            return fitted
        if self.block_mask is None:
            raise ArgumentError("extern_block_mask=True: pass the block mask with the call, as in mod(q, k, v, block_mask=mask)")
        return fitting(self.block_mask, blocks, problem)

    def _with_shared(self, q: Any, k: Any, v: Any, custom: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """kv_shared=True: keys and values in one tensor. Pages give (o, lse), as they do in AttentionEngine."""
        q, k, v, custom, paged = join(q, k, v, custom, self._shapes.inputs.value_dim)
        if not paged or options.get("return_rowscales"):
            return self.attend(q, k, v, *custom, **options)
        if "lse" not in self._outputs:
            raise ArgumentError(f"with kv_cache a call returns (o, lse), but {type(self._online).__name__} has no row output `lse`")
        o, rows = self.attend(q, k, v, *custom, **{**options, "return_rowscales": True})
        return o, rows["lse"]

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"{self._shapes.inputs}, online_func={type(self._online).__name__}"
