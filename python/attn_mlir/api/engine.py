"""`AttentionEngine`: attention of the user's own design, in the form of score_mod, mask_mod and an OnlineFunc."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from attn_mlir.api.accessors import accessors
from attn_mlir.api.custom_io import CustomIO, check_custom
from attn_mlir.api.describe import explain_online
from attn_mlir.api.engine_arguments import (
    captures_with,
    check_external,
    check_support,
    compare_written,
    custom_of,
    device_of,
    guard_in_graph,
    has_backward,
    mask_of,
    specialised_on,
    target_of,
    working_dtypes,
)
from attn_mlir.api.execute import execute, forward_in_graph, needing_gradient, ops, program_of, slow_of, stage_of, stages_of
from attn_mlir.api.given_masks import Mask, check_sizes, is_block_mask, sizes_of
from attn_mlir.api.inputs import Problem, check_inputs, problem_of
from attn_mlir.api.meta import Shapes
from attn_mlir.api.online_func import OnlineFunc, check_online_func, writes_backward
from attn_mlir.api.online_rows import Identity
from attn_mlir.api.refused import without_backward
from attn_mlir.api.tuning import Wish, tuning_of
from attn_mlir.errors import ArgumentError, TraceError, UnsupportedError
from attn_mlir.frontend.cache import Entry, TraceCache
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.online import OnlineProgram, trace_online
from attn_mlir.runtime.programs import served_by

Function = Callable[..., Any]
_CACHE = TraceCache()


class AttentionEngine:
    """o_i = epilogue(sum_j p_ij v_j), p = online_func(score_mod(query_mod(q_i) . key_mod(k_j))) over the keys that the mask keeps.

    qkv_meta: meta_tensor(B, H, S, D) for q, k and v. custom_fwd_inputs: a CustomIO with the further inputs of a call.
    score_mod(score, custom_fwd_inputs, b, h, q_idx, kv_idx): the changed score; there is no scale but what it does.
    mask_mod(b, h, q_idx, kv_idx), or the same as block_mask=, or create_block_mask(...) as block_mask=: true where a
    key is present. online_func: an instance of an OnlineFunc; None: the scores are the weights.
    query_mod, key_mod, value_mod: elementwise, f(x) or f(x, custom_fwd_inputs), optionally followed by b, h, idx, d.

    A masked key is absent: it enters no reduction and has no weight. So `mask_value` "-inf" and "0" mean the same here.
    The functions are traced when the object is made, so mistakes in them show at once. Which blocks a mask leaves out
    is derived from the mask itself: infer_mask, infer_mask_block_M and infer_mask_block_N need not be set.

    Gradients of q, k, v and the custom inputs come from `forward` and `backward` of online_func where it defines them, else
    they are derived. check=True compares the two in float64 on random scores, and so `combine`, and warns where they differ.
    deterministic=True: gradients have the same bits in every run, which takes more time on a GPU.

    tune, tune_bwd: the first call of each kind measures kernels of the forward and of the backward pass, on devices whose backend has a
    tuner. tune_file, tune_file_bwd: where that is kept; what these files hold is used in any case. Lengths share a result up to the next
    power of two. Inside torch.compile nothing is measured: what the last call outside of it found is used.
    """

    def __init__(
        self,
        qkv_meta: Any,
        custom_fwd_inputs: CustomIO | None = None,
        score_mod: Function | None = None,
        mask_mod: Mask = None,
        block_mask: Mask = None,
        online_func: OnlineFunc | None = None,
        query_mod: Function | None = None,
        key_mod: Function | None = None,
        value_mod: Function | None = None,
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
        check: bool = False,
        deterministic: bool = False,
    ) -> None:
        self._shapes = Shapes(qkv_meta)
        self._custom = custom_of(custom_fwd_inputs, "custom_fwd_inputs")
        self._online = check_online_func(Identity() if online_func is None else online_func)
        check_external(self._online, self._custom)
        if mask_value not in ("-inf", "0"):
            raise ArgumentError(f'mask_value is "-inf" or "0", got {mask_value!r}')
        check_support(backend, kv_shared)
        self._device = device_of(device)
        self._tuning = tuning_of(Wish(bool(tune), tune_file, bool(tune_bwd), tune_file_bwd))
        self._deterministic = bool(deterministic)
        self._mask = mask_of(mask_mod, block_mask, extern_block_mask)
        self._sizes = [sizes_of(given) for given in (mask_mod, block_mask) if is_block_mask(given)]
        self._functions = (query_mod, key_mod, value_mod, score_mod, self._mask, self._online.online_fwd, self._online.online_fwd_epilogue)
        states, outputs = self._online.online_rowscales, self._online.final_rowscales
        self._states = {name: scalar.initial for name, scalar in states.items()}
        self._outputs = tuple(outputs)
        self._form = (self._shapes.inputs, self._custom.scan_key(), tuple(self._states.items()), self._outputs)
        self._dtypes = working_dtypes(len(self._custom.input_tensors), lambda dtypes: self._find(dtypes, None))
        self._written = (self._online.forward, self._online.backward) if has_backward(self._online) else ()
        self._accessors = accessors(self._functions)
        self._backward_accessors = accessors((*self._functions, *self._written))
        if check:
            compare_written(self._online, self._custom)

    def __call__(self, q: Any, k: Any, v: Any, *custom: Any, block_mask: Any = None, return_rowscales: bool = False) -> Any:
        """o, [B, Sq, H, Dv], for q [B, Sq, H, D], k [B, Skv, Hkv, D], v [B, Skv, Hkv, Dv] and the custom inputs in order.

        With return_rowscales=True also the final_rowscales, a dictionary of tensors [B, H, Sq].
        """
        if torch.compiler.is_dynamo_compiling():
            return self._in_graph(q, k, v, custom, return_rowscales)
        problem = check_inputs(q, k, v, "bshd")
        self._shapes.check(problem, q.dtype)
        self._check_mask(block_mask, problem)
        named = check_custom(self._custom.input_tensors, custom, problem)
        target = target_of("AttentionEngine", self._device, problem)
        self._dtypes = tuple(tensor.dtype for tensor in custom)
        entry, captures = self._program(problem, named)
        if needing_gradient((q, k, v, *captures)):
            try:
                entry, captures = self._program(problem, named, backward=True)
            except TraceError as error:  # the backward pass that the user wrote cannot be used: told when it is asked for
                with torch.no_grad():
                    o, rows = self(q, k, v, *custom, block_mask=block_mask, return_rowscales=True)
                o, *results = without_backward([o, *rows.values()], (q, k, v, *captures), error)
                return (o, dict(zip(self._outputs, results, strict=True))) if return_rowscales else o
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if self._tuning is not None:
            entry = self._tuning.entry(entry, q, k, v, captures, "bshd", target, self._deterministic)
        results = execute(entry, problem, q, k, v, captures, "bshd", target, self._deterministic)
        o = results[0].transpose(1, 2)
        return (o, dict(zip(self._outputs, results[1:], strict=True))) if return_rowscales else o

    def _in_graph(self, q: Any, k: Any, v: Any, custom: tuple[Any, ...], return_rowscales: bool) -> Any:
        """The same inside torch.compile."""
        from attn_mlir.api.compiled import in_transform, outside

        if in_transform():
            return outside(self, q, k, v, *custom, return_rowscales=return_rowscales)
        problem = problem_of(q, k, v, "bshd")
        self._shapes.check(problem, q.dtype)
        check_custom(self._custom.input_tensors, custom, problem)
        target_of("AttentionEngine", self._device, problem)
        self._check_mask(None, problem)
        leaves = [read() for read in self._accessors if read is not None]
        backward = torch.is_grad_enabled() and any([isinstance(x, torch.Tensor) and x.requires_grad for x in (q, k, v, *custom, *leaves)])
        name, sources, needed = self._graph_program(q.device.type, backward, *[t.dtype for t in custom])
        reads = self._backward_accessors if backward else self._accessors
        guard_in_graph(needed, reads)
        values = [q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)]
        for source, position, _, _ in sources:
            values.append(custom[position] if source == "custom" else reads[position]())  # type: ignore[misc]
        arguments = ["q", "k", "v", *[argument for _, _, _, argument in sources]]
        results = forward_in_graph(values, arguments, [kind for _, _, kind, _ in sources], name, "bshd")
        o = results[0].transpose(1, 2)
        return (o, dict(zip(self._outputs, results[1 : 1 + len(self._outputs)], strict=True))) if return_rowscales else o

    @torch._dynamo.assume_constant_result
    def _graph_program(
        self, device: str, backward: bool, *dtypes: torch.dtype
    ) -> tuple[str, tuple[tuple[str, int, str, str], ...], tuple[tuple[int, int, Any], ...]]:
        """The name of the program; where its captures come from: "custom" or "leaf", which one, their kind and argument; and what it
        was specialised on.
        """
        ops()  # registers the operator
        with _disable_current_modes():  # constants in the functions are real, not part of the graph that is being made
            entry, scan = self._find(dtypes, torch.device(device), backward)
        program = program_of(entry if self._tuning is None else self._tuning.latest(entry, device), self._deterministic)
        names, sources = list(self._custom.input_tensors), []
        reads = self._backward_accessors if backward else self._accessors
        needed = specialised_on(entry, scan, reads, "custom_fwd_inputs")
        for number, captured in enumerate(entry.traced.captures):
            kind, at = captured.source[0], captured.source[1]
            known = kind == "custom" or (kind == "leaf" and int(at) < len(reads) and reads[int(at)] is not None)
            if not known:
                raise UnsupportedError(
                    f"inside torch.compile, `{captured.name}` must be a variable of a function itself, or a tensor of custom_fwd_inputs"
                )
            sources.append((kind, names.index(at) if kind == "custom" else int(at), captured.kind, program.argument(3 + number)))
        emulation = self._device.emulation
        return (served_by(program, emulation) if emulation else program).name, tuple(sources), needed

    def stages(self) -> dict[str, str]:
        """The program as IR: "traced", and after each pass, by the pass's name."""
        return stages_of(self._find(self._dtypes, None)[0], self._device.name or "cpu")

    def ir(self, stage: str = "traced") -> str:
        """The program after one stage of `stages()`. Raises ArgumentError for an unknown stage."""
        return stage_of(self._find(self._dtypes, None)[0], stage, self.stages)

    def explain(self) -> str:
        """How it is computed: the online program as it is written, the row that it comes to with its merge rule, and the backward pass."""
        name, problem = type(self._online).__name__, ""
        entry = forward = self._find(self._dtypes, None)[0]
        try:
            entry = self._find(self._dtypes, None, backward=True)[0]
        except TraceError as error:
            problem = f"\nthe backward that {name} writes cannot be used: {error}\n"
        return explain_online(entry.traced, name) + problem + "".join(dict.fromkeys(map(slow_of, (forward, entry))))

    def _program(self, problem: Problem, named: Mapping[str, torch.Tensor], backward: bool = False) -> tuple[Entry, list[Any]]:
        """The program of a call, and the values that it captures; `named` are the custom inputs."""
        entry, scan = self._find(self._dtypes, problem.device, backward)
        return entry, captures_with(named, entry, scan)

    def _find(self, dtypes: tuple[torch.dtype, ...], device: Any, backward: bool = False) -> tuple[Entry, Scan]:
        """`backward`: also what the user wrote of the backward pass. It is not traced before a gradient is asked for."""
        written = self._written if backward and writes_backward(self._online) else ()

        def trace() -> Any:
            query_mod, key_mod, value_mod, score_mod, mask_mod, online_fwd, epilogue = self._functions
            named = dict(zip(self._custom.input_tensors, dtypes, strict=True))
            program = OnlineProgram(
                online_fwd, epilogue, self._states, self._outputs, type(self._online).__name__,
                score_mod, mask_mod, query_mod, key_mod, value_mod, self._custom, named, *written,
            )  # fmt: skip
            return trace_online(program, self._shapes.inputs, device)

        return _CACHE.find((*self._functions, *written), (self._form, dtypes), trace)

    def _check_mask(self, block_mask: Any, problem: Problem) -> None:
        """`block_mask` is that of a call; the one given at construction has sizes to hold to."""
        if block_mask is not None and not (is_block_mask(block_mask) and block_mask.mask_mod is self._mask):
            raise UnsupportedError(
                "a block mask can't be passed with the call yet: make the AttentionEngine with mask_mod=, a function of "
                "(b, h, q_idx, kv_idx), which may read a tensor, as in pattern[q_idx // 128, kv_idx // 128]"
            )
        for sizes in self._sizes if block_mask is None else [sizes_of(block_mask)]:
            check_sizes(sizes, problem.sizes)
