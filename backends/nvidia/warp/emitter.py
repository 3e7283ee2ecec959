"""The code generator `warp`, for 8-bit elements and whoever asks for it by name: kernels that passes of the `warp` dialect form."""

from collections.abc import Mapping

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import SCHEDULE, Fields
from attn_mlir.backends.gpu.emitters import Refusal
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import pipeline, thresholds
from attn_mlir.backends.nvidia.forming.chunk_rows import gives_products, rows_and_state
from attn_mlir.backends.nvidia.forming.chunks import adds_to_state
from attn_mlir.backends.nvidia.forming.facts import FIELDS, chosen, said
from attn_mlir.backends.nvidia.forming.kernel import ROWS
from attn_mlir.backends.nvidia.forming.refusal import Refused, reasons
from attn_mlir.backends.nvidia.forming.rings import stages_of
from attn_mlir.backends.nvidia.passes.claim_sums import ClaimSums
from attn_mlir.backends.nvidia.passes.pack_rows import PackRows
from attn_mlir.backends.nvidia.passes.share_dropout import ShareDropout
from attn_mlir.backends.nvidia.passes.stage_windows import StageWindows
from attn_mlir.backends.nvidia.target import HOPPER, NvidiaTarget
from attn_mlir.backends.nvidia.turned_ahead import TURNED_FROM
from attn_mlir.backends.nvidia.warp.chips import rules_for
from attn_mlir.backends.nvidia.warp.claimed import claimed
from attn_mlir.backends.nvidia.warp.source import kernel_code
from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all, maker
from attn_mlir.registry import registry

UNFORMED = "unformed"
"""In the choices of a kernel: why another emitter makes it."""
_ADVICE = "dequantise q, k and v, for example k = (k.float() * k_descale).to(torch.bfloat16), or compute on the CPU"
_MOST = 8
"""Kernels that are kept: programs choose for all of theirs before they emit the first."""
_printed: dict[str, KernelCode] = {}
"""The code that was printed ahead last and not emitted yet, by the text of its function."""


def plan(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | Refusal | None:
    """What was chosen for the passes, where this code generator is asked for by name, or elements have 8 bits; else None.

    On chips without TMA `nvidia-choose-blocks` asks for it where passes form a kernel, and says otherwise why they do not: see
    `synchronous.py`. Raises UnsupportedError where nothing makes a kernel of these.
    """
    if "emitter" not in choices and UNFORMED in choices:
        return Refusal(str(choices[UNFORMED]))
    if "emitter" not in choices and target.bulk_copies and attributes.grid_kind(kernel) == "chunks":
        return _scan(kernel, target, choices) if makes_scan(kernel) else None
    narrow = _is_narrow(kernel)
    if choices.get("emitter") != "warp" and (not narrow or (widens_beside_queries(kernel) and target.bulk_copies)):
        return None  # wider queries: `hopper` widens tiles of keys and values
    facts = {item.name for item in ir.DictAttr(kernel.attributes["tile.kernel"])}
    if "paged" in facts and not narrow and not target.bulk_copies:
        raise UnsupportedError("'warp' reads no keys in pages (block_table) on chips without TMA: gather the pages, or use the CPU")
    fields: Fields = {name: choices[name] for name in FIELDS if name in choices}
    if choices.get("deterministic") and attributes.grid_kind(kernel) == "pairs":
        if target.bulk_copies:
            raise UnsupportedError(
                "'warp', asked for by name, adds sums over keys in no fixed order (deterministic, batch_invariant): leave the emitter open"
            )
        fields |= _counters(kernel)
    elif fields.pop("claims", 0):
        fields |= claimed(kernel)
    if narrow:
        fields = {**thresholds.EIGHT_BIT_FIELDS, **fields, **{name: choices[name] for name in ("longer", TURNED_FROM) if name in choices}}
        if facts & {"lengths", "paged"}:
            raise UnsupportedError(f"packed sequences and pages take no 8-bit q, k and v on NVIDIA GPUs yet: {_ADVICE}")
        if not target.eight_bit:
            raise UnsupportedError(f"{target.arch} has no 8-bit matrix instructions: {_ADVICE}")
        _try(kernel, {"emitter": "warp", "arch": target.arch, **fields})
    return fields


def makes_scan(kernel: ir.Operation) -> bool:
    """Whether a scan over chunks is of a form and size that passes make no slower than another code generator."""
    rows = rows_and_state(kernel)
    slower = rows in thresholds.HOPPER_ROWS or (gives_products(kernel) and rows in thresholds.HOPPER_PRODUCTS)
    return bool(adds_to_state(kernel)) or (bool(rows) and not slower)


def _scan(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | Refusal | None:
    """The schedule of a scan, or, of one that gives states alone, why another code generator makes it; None for other scans with rows."""
    fields: Fields = {name: choices[name] for name in FIELDS if name in choices}
    try:
        print_ahead(kernel, {"emitter": "warp", "arch": target.arch, **fields})
    except (Refused, UnsupportedError) as reason:
        return Refusal(str(reason)) if adds_to_state(kernel) else None
    return fields


def _counters(kernel: ir.Operation) -> Fields:
    """Which counters schedules of kernels over pairs have for sums in a fixed order (`forming.ordering`): none without sums."""
    sums = find_all(kernel, "tile.accumulate")
    if not sums:
        return {}
    facts, queries = ir.DictAttr(kernel.attributes["tile.kernel"]), list(sums[0].operands)[4:7]
    keys, rows = (ir.IntegerAttr(facts[name]).value for name in ("block_q", "block_kv"))
    loaded = [op.operands[0] for op in find_all(kernel, "tile.load") if list(op.operands)[1:4] == queries]
    over = ir.BlockArgument(loaded[0]).arg_number if loaded else 0
    return {"deterministic": 1, "semaphore_over": over, "semaphore_rows": rows, "semaphore_parts": keys // ROWS}


def widens_beside_queries(kernel: ir.Operation) -> bool:
    """Whether loads make 16 bits of 8-bit elements, beside loads of 16 bits: queries."""
    types = [(ir.MemRefType(op.operands[0].type).element_type, op.results[0].type) for op in find_all(kernel, "tile.load")]
    made = {ir.RankedTensorType(tile).element_type.width for memory, tile in types if is_eight_bit(memory)}
    return made == {16} and any(not is_eight_bit(memory) for memory, _ in types)


def _try(kernel: ir.Operation, fields: Fields) -> None:
    """Raises UnsupportedError where passes form no kernel of 8-bit elements, which no other code generator makes."""
    try:
        print_ahead(kernel, fields)
    except Refused as reason:
        raise UnsupportedError(f"no kernel with 8-bit elements is formed: {reason}. {_ADVICE[0].upper()}{_ADVICE[1:]}") from None


def passes_for(*functions: ir.Operation) -> str:
    """The pipeline that forms kernels of tiled functions, by their chip."""
    schedules = [attributes.read(function, SCHEDULE) for function in functions if SCHEDULE in function.attributes]
    other = any(fields.get("arch", HOPPER.arch) != HOPPER.arch for fields in schedules)
    return pipeline.OTHERS if other else pipeline.SCHEDULE


def _is_narrow(function: ir.Operation) -> bool:
    return any(is_eight_bit(ir.MemRefType(load.operands[0].type).element_type) for load in find_all(function, "tile.load"))


def formed(function: ir.Operation) -> tuple[ir.Module, ir.Operation]:
    """A module with the kernel that passes form of a tiled function which `tile-schedule` has left. Raises Refused, with their reasons."""
    module = ir.Module.parse(f"module {{\n{_text(function)}\n}}", function.context)
    Pipeline.parse(passes_for(function), registry()).run(module)
    kernels = find_all(module.operation, "warp.kernel")
    if not kernels:
        (refused,) = find_all(module.operation, "func.func")
        raise Refused("; ".join(reasons(refused).values()) or "it has no tiles")
    check_packed(kernels[0])
    check_claims(kernels[0])
    return module, kernels[0]


def check_packed(kernel: ir.Operation) -> None:
    """Raises Refused where heads were to be packed and are not: the kernel would be right, and slow."""
    why = reasons(kernel).get(PackRows.name, "")
    if why and chosen(kernel, "pack", 0, 1) > 1:
        raise Refused(f"no heads of queries can be packed: {why}")


def check_claims(kernel: ir.Operation) -> None:
    """Raises Refused where the first thread block was to store sums, and adds them: nobody writes zeros before."""
    if chosen(kernel, "claims", 0, 0) and not find_all(kernel, "warp.claim"):
        why = reasons(kernel).get(ClaimSums.name, f"{ClaimSums.name} has not run")
        raise Refused(f"no thread block stores the first sums over keys: {why}")


def check_dropout(kernel: ir.Operation) -> None:
    """Raises Refused where lanes were to share bits of dropout, and each makes its own ones: the kernel would be right, and slow."""
    why = reasons(kernel).get(ShareDropout.name, "")
    if why and said(kernel, "dropout", "") == "lanes":
        raise Refused(f"lanes share no bits of dropout: {why}")


def check_windows(kernel: ir.Operation) -> None:
    """Raises Refused where windows were asked for and none are made: the kernel would be right, and slow."""
    why = reasons(kernel).get(StageWindows.name, "")
    if why and chosen(kernel, "windows", 0, 0):
        raise Refused(f"no windows of captured tensors are copied: {why}")


def check_draws(kernel: ir.Operation) -> None:
    """Raises Refused where tiles wait for others that no thread block may have begun: those of a thread block's number."""
    if find_all(kernel, "warp.order_wait") and not find_all(kernel, "warp.next_tile"):
        raise Refused("tiles wait for those of lower numbers, and thread blocks do not draw them (warp-draw-tiles)")


def check_leaving(kernel: ir.Operation) -> None:
    """Raises Refused where rows leave through the only stage of a tile, which is given back once the next one is there: a deadlock."""
    for op in find_all(kernel, "warp.write_transposed"):
        view = maker(op.operands[1], "warp.view")
        if view is not None and stages_of(view.operands[0].type) == 1:
            raise Refused("rows leave through the memory of v, which has one stage: scans with rows need two, and as many as fit")


def print_ahead(function: ir.Operation, fields: Fields) -> KernelCode:
    """A function without a schedule printed as `emit` will with this one. Raises Refused as `formed` does, and UnsupportedError."""
    function.attributes[SCHEDULE] = attributes.write(fields)
    try:
        _module, made = formed(function)
        check_draws(made)
        check_leaving(made)
        check_windows(made)
        check_dropout(made)
        code = kernel_code(made, rules_for(made))
        if len(_printed) == _MOST:
            del _printed[next(iter(_printed))]
        _printed[_text(function)] = code
        return code
    finally:
        del function.attributes[SCHEDULE]


def emit(kernel: ir.Operation, target: NvidiaTarget) -> KernelCode:
    """The source of a kernel. Raises UnsupportedError where passes form none, or its chip cannot do something."""
    known = _printed.pop(_text(kernel), None) if _printed else None
    if known is not None:
        return known
    try:
        _module, made = formed(kernel)
        check_draws(made)
        check_leaving(made)
        check_windows(made)
        check_dropout(made)
    except Refused as reason:
        name = ir.StringAttr(kernel.attributes["sym_name"]).value
        raise UnsupportedError(f"warp: no scheduled kernel is made of @{name}: {reason}") from None
    return kernel_code(made, rules_for(made))


def _text(function: ir.Operation) -> str:
    return function.get_asm(print_generic_op_form=True, enable_debug_info=True)
