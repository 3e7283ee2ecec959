"""`AttentionEngine`: attention of the user's own design, in the form of score_mod, mask_mod and an OnlineFunc."""

import itertools
from collections.abc import Callable
from typing import Any

import torch

from attn_mlir import driver
from attn_mlir.api.block_mask import BlockMask
from attn_mlir.api.custom_io import CustomIO, check_custom
from attn_mlir.api.execute import check_captures, empty_results, kernel_of
from attn_mlir.api.inputs import Problem, check_gradients, check_inputs, device_type
from attn_mlir.api.meta import Shapes
from attn_mlir.api.online_func import OnlineFunc, check_online_func
from attn_mlir.api.online_rows import Identity
from attn_mlir.errors import ArgumentError, TraceError, UnsupportedError
from attn_mlir.frontend.cache import Entry, TraceCache
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.online import OnlineProgram, trace_online
from attn_mlir.mlir import LOCK

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
    """

    def __init__(
        self,
        qkv_meta: Any,
        custom_fwd_inputs: CustomIO | None = None,
        score_mod: Function | None = None,
        mask_mod: Function | None = None,
        block_mask: Function | BlockMask | None = None,
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
    ) -> None:
        self._shapes = Shapes(qkv_meta)
        self._custom = _custom(custom_fwd_inputs)
        self._online = check_online_func(Identity() if online_func is None else online_func)
        _check_external(self._online, self._custom)
        if mask_value not in ("-inf", "0"):
            raise ArgumentError(f'mask_value is "-inf" or "0", got {mask_value!r}')
        _check_support(backend, tune, tune_bwd, kv_shared)
        self._device = _device(device)
        self._mask = _mask(mask_mod, block_mask, extern_block_mask)
        self._sizes = block_mask.sizes if isinstance(block_mask, BlockMask) else None
        self._functions = (query_mod, key_mod, value_mod, score_mod, self._mask, self._online.online_fwd, self._online.online_fwd_epilogue)
        states, outputs = self._online.online_rowscales, self._online.final_rowscales
        self._states = {name: scalar.initial for name, scalar in states.items()}
        self._outputs = tuple(outputs)
        self._form = (self._shapes.inputs, self._custom.scan_key(), tuple(self._states.items()), self._outputs)
        self._dtypes = self._first_trace()

    def __call__(self, q: Any, k: Any, v: Any, *custom: Any, block_mask: Any = None, return_rowscales: bool = False) -> Any:
        """o, [B, Sq, H, Dv], for q [B, Sq, H, D], k [B, Skv, Hkv, D], v [B, Skv, Hkv, Dv] and the custom inputs in order.

        With return_rowscales=True also the final_rowscales, a dictionary of tensors [B, H, Sq].
        """
        problem = check_inputs(q, k, v, "bshd")
        self._shapes.check(problem, q.dtype)
        self._check_mask(block_mask, problem)
        named = check_custom(self._custom.input_tensors, custom, problem)
        check_gradients({"q": q, "k": k, "v": v, **named})
        if self._device not in (None, problem.device.type):
            raise ArgumentError(f"q is on {problem.device}, but this AttentionEngine was made with device={self._device!r}")
        self._dtypes = tuple(tensor.dtype for tensor in custom)
        entry, scan = self._find(self._dtypes, problem.device)
        captures = entry.captures(scan, 0.0)
        for position, captured in enumerate(entry.traced.captures):
            if captured.source[0] == "custom":
                captures[position] = named[captured.source[1]]
        if captures:
            check_captures(entry, captures, problem, scan)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if problem.is_empty:
            results = empty_results(entry, problem, v, "bshd")
        else:
            results = kernel_of(entry, problem.device.type).run(q, k, v, captures, "bshd")
        o = results[0].transpose(1, 2)
        return (o, dict(zip(self._outputs, results[1:], strict=True))) if return_rowscales else o

    def stages(self) -> dict[str, str]:
        """The program as IR: "traced", and after each pass, by the pass's name."""
        with LOCK:
            return kernel_of(self._find(self._dtypes, None)[0], self._device or "cpu").stages()

    def ir(self, stage: str = "traced") -> str:
        """The program after one stage of `stages()`. Raises ArgumentError for an unknown stage."""
        if stage == "traced":
            return self._find(self._dtypes, None)[0].traced.text
        stages = self.stages()
        if stage not in stages:
            raise ArgumentError(f"stage is one of {', '.join(stages)}; got {stage!r}")
        return stages[stage]

    def _first_trace(self) -> tuple[torch.dtype, ...]:
        """Traces the functions to find mistakes; returns dtypes of custom inputs, which are not known yet, with which they work."""
        count = len(self._custom.input_tensors)
        tried = itertools.product((torch.float32, torch.int64, torch.bool), repeat=count)
        found: TraceError | None = None
        for dtypes in itertools.islice(tried, 27):
            try:
                self._find(dtypes, None)
            except TraceError as error:
                found = found or error
            else:
                return dtypes
        if found is not None and count <= 3:  # with more, not all combinations were tried
            raise found
        return (torch.float32,) * count

    def _find(self, dtypes: tuple[torch.dtype, ...], device: Any) -> tuple[Entry, Scan]:
        def trace() -> Any:
            query_mod, key_mod, value_mod, score_mod, mask_mod, online_fwd, epilogue = self._functions
            named = dict(zip(self._custom.input_tensors, dtypes, strict=True))
            program = OnlineProgram(
                online_fwd, epilogue, self._states, self._outputs, type(self._online).__name__,
                score_mod, mask_mod, query_mod, key_mod, value_mod, self._custom, named,
            )  # fmt: skip
            return trace_online(program, self._shapes.inputs, device)

        return _CACHE.find(self._functions, (self._form, dtypes), trace)

    def _check_mask(self, block_mask: Any, problem: Problem) -> None:
        """`block_mask` is that of a call; the one given at construction has sizes to hold to."""
        if block_mask is not None and not (isinstance(block_mask, BlockMask) and block_mask.mask_mod is self._mask):
            raise UnsupportedError(
                "a block mask can't be passed with the call yet: make the AttentionEngine with mask_mod=, a function of "
                "(b, h, q_idx, kv_idx), which may read a tensor, as in pattern[q_idx // 128, kv_idx // 128]"
            )
        sizes = self._sizes if block_mask is None else block_mask.sizes
        if sizes is None:
            return
        for name, given, key in zip(
            ("batch size", "number of heads", "length", "length of k"), sizes, ("B", "Hq", "Sq", "Skv"), strict=True
        ):
            wanted = problem.sizes[key]
            if given != wanted and not (given == 1 and key in ("B", "Hq")):
                raise ArgumentError(
                    f"block_mask was made for a {name} of {given}, but it is {wanted} in this call; pass the mask function itself instead"
                )


def _custom(given: Any) -> CustomIO:
    if given is None or isinstance(given, CustomIO):
        return given or CustomIO()
    raise ArgumentError(f"custom_fwd_inputs must be a CustomIO, got {type(given).__name__}: write CustomIO({{...}})")


def _check_external(online_func: OnlineFunc, custom: CustomIO) -> None:
    for name, tensor in online_func.external_fwd_tensors.input_tensors.items():
        known = custom.input_tensors.get(name)
        if known is None or known.dims != tensor.dims:
            declared = "is not in custom_fwd_inputs" if known is None else f"has the dimensions {known.dims} in custom_fwd_inputs"
            raise ArgumentError(
                f"{type(online_func).__name__} takes the tensor `{name}` with the dimensions {tensor.dims}, which {declared}"
            )


def _check_support(backend: Any, tune: Any, tune_bwd: Any, kv_shared: Any) -> None:
    if backend not in (None, "tl"):
        raise UnsupportedError(f"backend={backend!r} is not there yet: leave it out, and the backend of the tensors' device is used")
    for name, value in (("tune", tune), ("tune_bwd", tune_bwd)):
        if value:
            raise UnsupportedError(f"{name}=True: there is no tuner yet; leave it out, and sizes are chosen by rule")
    if kv_shared:
        raise UnsupportedError("kv_shared=True is not there yet: pass k and v as two tensors; they may be views of the same memory")


def _device(device: Any) -> str | None:
    name = device_type(device)
    if name is not None:
        driver.compiler_for(name)
    return name


def _mask(mask_mod: Any, block_mask: Any, extern_block_mask: bool) -> Function | None:
    function = block_mask.mask_mod if isinstance(block_mask, BlockMask) else block_mask
    if isinstance(block_mask, torch.Tensor):
        raise UnsupportedError("block_mask as a tensor is not there yet: pass the mask function, or create_block_mask(mask, B, H, Sq, Skv)")
    if mask_mod is not None and function is not None and function is not mask_mod:
        raise ArgumentError("mask_mod and block_mask are two masks: give one, or combine them with attn_mlir.masks.and_(f, g)")
    function = function if mask_mod is None else mask_mod
    if extern_block_mask and function is None:
        raise UnsupportedError(
            "extern_block_mask=True without a mask function is not there yet: give mask_mod=, a function of (b, h, q_idx, kv_idx), "
            "which may read a tensor, as in pattern[q_idx // 128, kv_idx // 128]"
        )
    return function
