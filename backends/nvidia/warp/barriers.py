"""Rules of barriers, fences and the stages of rings."""

from attn_mlir.backends.nvidia.forming.facts import wanted
from attn_mlir.backends.nvidia.warp.printer import Rule, WarpPrinter, plain
from attn_mlir.backends.nvidia.warp.scalars import operand
from attn_mlir.dialects.regions import around
from attn_mlir.dialects.warp.barriers import FIRST_WARP, IN_TURN
from attn_mlir.dialects.warp.kinds import stages_and_arrivals
from attn_mlir.mlir import ir

BYTES = 8
"""Of an mbarrier."""
_ALONE = "warp == 0"


def at(barrier: str, stage: str) -> str:
    """The address of the barrier of a stage."""
    return barrier if stage == "0" else f"{barrier} + {stage} * {BYTES}"


def is_turn(op: ir.Operation, stage: str) -> str:
    """Whether a warp takes this stage, where those of a warpgroup do so in turn: the first one starts copies, and must not wait."""
    warps = plain(next(above for above in around(op) if above.name == "warp.role"), "warps")
    return f"warp == 1 + {operand(stage)} % {warps - 1}" if warps > 1 else _ALONE


def _mbarrier(printer: WarpPrinter, op: ir.Operation) -> None:
    """Initialised by as many threads as there are stages; `source.kernel_code` lets all threads meet before the roles begin."""
    stages, arrivals = stages_and_arrivals(op.results[0].type)
    name = printer.name(op.results[0], "barrier")
    printer.line(f"const uint32_t {name} = {printer.shared(BYTES * stages, BYTES)};")
    printer.line(f"if (threadIdx.x < {stages}) attn::barrier_init({name} + threadIdx.x * {BYTES}, {arrivals});")


def _stage(printer: WarpPrinter, op: ir.Operation, count: str) -> None:
    stages = plain(op, "stages")
    stage, phase = op.results
    if stages == 1:
        printer.printed[stage] = "0"
        printer.line(f"const int {printer.name(phase, 'phase')} = (int)({count} & 1);")
        return
    printer.line(f"const int {printer.name(stage, 'stage')} = (int)((unsigned){count} % {stages});")
    printer.line(f"const int {printer.name(phase, 'phase')} = (int)((unsigned){count} / {stages} & 1);")


def _arrive(printer: WarpPrinter, op: ir.Operation, barrier: str, stage: str) -> None:
    """In `warp.elect` one thread's, else one for each warp, whose lanes are all there."""
    text = f"attn::barrier_arrive({at(barrier, stage)});"
    one = "attn::elect_one()" if wanted(printer.kernel, "elect") else "lane == 0"
    printer.line(*([text] if printer.elected else ["__syncwarp();", f"if ({one}) {text}"]))


def _arrive_expect(printer: WarpPrinter, op: ir.Operation, barrier: str, stage: str) -> None:
    printer.line(f"attn::barrier_arrive_expect({at(barrier, stage)}, {plain(op, 'bytes')});")


def _wait(printer: WarpPrinter, op: ir.Operation, barrier: str, stage: str, phase: str) -> None:
    turn = is_turn(op, stage) if IN_TURN in op.attributes else ""
    if FIRST_WARP in op.attributes:
        printer.line(f"if ({_ALONE})")
    printer.line(f"{f'if ({turn}) ' if turn and turn != _ALONE else ''}attn::barrier_wait({at(barrier, stage)}, {phase});")


def _named_sync(printer: WarpPrinter, op: ir.Operation, number: str) -> None:
    printer.line(f"attn::named_sync({number}, {plain(op, 'threads')});")


def _named_arrive(printer: WarpPrinter, op: ir.Operation, number: str) -> None:
    printer.line(f"attn::named_arrive({number}, {plain(op, 'threads')});")


def _fence_async(printer: WarpPrinter, op: ir.Operation) -> None:
    printer.line("attn::fence_proxy_async();")


RULES: dict[str, Rule] = {
    "warp.arrive": _arrive,
    "warp.arrive_expect": _arrive_expect,
    "warp.fence_async": _fence_async,
    "warp.mbarrier": _mbarrier,
    "warp.named_arrive": _named_arrive,
    "warp.named_sync": _named_sync,
    "warp.stage": _stage,
    "warp.wait": _wait,
}
