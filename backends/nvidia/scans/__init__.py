"""CUDA C++ for chunk scans whose form the emitter "hopper" does not know, delta rules above all: products of warps, states in registers."""

import itertools
from collections.abc import Mapping

from attn_mlir.backends.gpu import attributes, printed
from attn_mlir.backends.gpu.attributes import Fields, grid_kind
from attn_mlir.backends.gpu.emitters import Refusal
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.device_helpers import text_of
from attn_mlir.backends.nvidia.passes.float32_products import PIECES
from attn_mlir.backends.nvidia.passes.prepare_chunks import INVERSE
from attn_mlir.backends.nvidia.scans.atoms import AtomCore, AtomLayout, AtomPrinter
from attn_mlir.backends.nvidia.scans.core import ScanCore
from attn_mlir.backends.nvidia.scans.layout import SOLVE, WarpScanLayout
from attn_mlir.backends.nvidia.scans.printer import ScanPrinter
from attn_mlir.backends.nvidia.scans.warpgroup_layout import WarpgroupLayout
from attn_mlir.backends.nvidia.scans.warpgroup_parts import WarpgroupCore
from attn_mlir.backends.nvidia.scans.warpgroup_printer import WarpgroupPrinter
from attn_mlir.backends.nvidia.target import RESERVED_BYTES, TILELANG, NvidiaTarget
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

HELPERS = ("scans/attn_warp.cuh", "scans/attn_scan.cuh", "scans/attn_triangle.cuh")
OF_WARPGROUPS = ("hopper/attn_wgmma.cuh", "scans/attn_descriptors.cuh", "scans/attn_warpgroup.cuh")
"""What kernels need beside these where warpgroups multiply; the last one uses instructions that are printed for a kernel."""
WARPGROUPS = "warpgroups"
"""The field of a schedule that says so."""
ATOMS = "atoms"
"""Another, of kernels of one chunk: whether a warpgroup makes their products."""
IN_PLACE = "in_place"
"""Another: whether rows on their way to memory take the places of tiles that were loaded."""


def plan(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | Refusal | None:
    """`stages`: in how many places tiles of a chunk are loaded, 0 where each is loaded when it is needed; `warps` of a thread block;
    `occupancy`: thread blocks that a multiprocessor has at the same time.

    None for kernels that neither scan chunks nor add up rows of a delta rule without products, and, unless this emitter is asked for or
    there is no TileLang (`tilelang` is 0), for scans of other recurrences. The reason, for sizes that warps cannot share, and where shared
    memory does not suffice.
    """
    grid = grid_kind(kernel)
    delta = PIECES in kernel.attributes or bool(find_all(kernel, SOLVE))
    others = grid == "chunks" and target.bulk_copies and choices.get(TILELANG, 1) == 0
    if not (delta or others or choices.get("emitter") == "scans"):
        return None
    if not find_all(kernel, *DOTS) if grid == "chunks" else grid != "rows" or bool(find_all(kernel, *DOTS, "tile.accumulate")):
        return None
    refusal: Refusal | None = None
    if (of_groups := _of_groups(kernel, target, choices)) is not None:
        return of_groups
    tried = thresholds.SCAN_SCHEDULES["usual"]
    if any(INVERSE in op.attributes for op in find_all(kernel, SOLVE)):
        channels = any(ir.RankedTensorType(op.results[0].type).rank == 2 for op in find_all(kernel, "tile.cumsum"))
        tried = thresholds.SCAN_SCHEDULES["chunks of channels" if channels else "chunks"]
    atoms = (1, 0) if tried is thresholds.SCAN_SCHEDULES["chunks"] and target.bulk_copies else (0,)
    tries = (_wanted(choices, name, values) for name, values in tried.items())
    for of_atoms, occupancy, warps, stages in itertools.product(_wanted(choices, ATOMS, atoms), *tries):
        if occupancy * warps > thresholds.SCAN_WARPS and not {"occupancy", "warps"} & set(choices):
            continue
        fields: Fields = {"stages": stages, "occupancy": occupancy, "warps": warps, **({ATOMS: 1} if of_atoms else {})}
        try:
            needed = printed.tried(kernel, "scans", fields, _print(kernel, target, fields)).shared_bytes
        except UnsupportedError as error:
            refusal = refusal or Refusal.of(error)
            continue
        most = target.shared_bytes // occupancy - RESERVED_BYTES * (occupancy > 1)
        if needed <= most:
            return fields
        refusal = Refusal(f"a chunk scan needs {needed} bytes of shared memory, and a thread block has {most}")
    return refusal


def _of_groups(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """Where warpgroups multiply: scans of prepared chunks on chips that have wgmma, unless `warpgroups` is 0 or warps are asked for."""
    if not target.bulk_copies or "warps" in choices or not choices.get(WARPGROUPS, 1):
        return None
    wanted = thresholds.SCAN_SCHEDULES[WARPGROUPS]
    places = _wanted(choices, IN_PLACE, wanted[IN_PLACE])
    for stages, in_place in itertools.product(_wanted(choices, "stages", wanted["stages"]), places):
        fields: Fields = {"stages": stages, "occupancy": int(choices.get("occupancy", 1)), WARPGROUPS: 1}
        fields |= {IN_PLACE: 1} if in_place else {}
        try:
            code = printed.tried(kernel, "scans", fields, _print(kernel, target, fields))
        except UnsupportedError:
            continue
        if code.shared_bytes * int(fields["occupancy"]) <= target.shared_bytes:
            return fields
    return None


def _wanted(choices: Mapping[str, int | str], name: str, usual: tuple[int, ...]) -> tuple[int, ...]:
    return (int(choices[name]),) if name in choices else usual


def emit(kernel: ir.Operation, target: NvidiaTarget) -> KernelCode:
    """The source of a kernel. Raises UnsupportedError for what this emitter cannot do."""
    return _print(kernel, target, attributes.read(kernel, attributes.SCHEDULE))


def pieces_of(kernel: ir.Operation) -> int:
    """Pieces of bf16 of each factor, where a kernel multiplies numbers of f32: two where the program's inputs have 16 bits."""
    if PIECES in kernel.attributes:
        return ir.IntegerAttr(kernel.attributes[PIECES]).value
    first = ir.MemRefType(kernel.regions[0].blocks[0].arguments[0].type)
    return 3 if isinstance(first.element_type, ir.F32Type) else 2


def _rounded(line: str) -> str:
    """A line of scalar code that rounds to bf16 as pairs are rounded: the instruction for single numbers is slow."""
    return line.replace("__float2bfloat16_rn(", "attn::bfloat_of(").replace("__bfloat162float(", "attn::wide_of(")


def _print(kernel: ir.Operation, target: NvidiaTarget, fields: Fields) -> KernelCode:
    if WARPGROUPS in fields:
        layout: WarpScanLayout = WarpgroupLayout(kernel, pieces_of(kernel), int(fields["stages"]), bool(fields.get(IN_PLACE, 0)))
        core: ScanCore = WarpgroupCore(kernel, layout)
        printer: ScanPrinter = WarpgroupPrinter(core)
    elif ATOMS in fields:
        layout = AtomLayout(kernel, pieces_of(kernel), int(fields["stages"]), int(fields["warps"]))
        core = AtomCore(kernel, layout)
        printer = AtomPrinter(core)
    else:
        layout = WarpScanLayout(kernel, pieces_of(kernel), int(fields["stages"]), int(fields["warps"]))
        core = ScanCore(kernel, layout)
        printer = ScanPrinter(core)
    core.writer.indent = core.scalars.indent = "  "
    printer.block(kernel.regions[0].blocks[0])
    name = ir.StringAttr(kernel.attributes["sym_name"]).value
    declared = ",\n".join(f"    {text}" for text in core.arguments.declarations())
    lines = [
        f'extern "C" __global__ void __launch_bounds__({layout.all_threads}, {fields["occupancy"]}) {name}(',
        f"{declared}) {{",
        f"  extern __shared__ __align__({layout.align}) unsigned char memory[];",
        "  const int block = blockIdx.x, head = blockIdx.y, batch = blockIdx.z, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;",
        *map(_rounded, core.writer.lines),
        "}",
        "",
    ]
    warps = f"namespace attn {{ constexpr int kWarps = {layout.warps}; }}"
    helpers = [*map(text_of, HELPERS), *_of_warpgroups(core)]
    source = "\n".join([warps, *helpers, core.scalars.helper_source(), *lines])
    shared = max(layout.size, 16)
    return KernelCode(name, name, source, core.arguments.parameters(), layout.all_threads, shared, arch=target.arch)


def _of_warpgroups(core: ScanCore) -> list[str]:
    """The instructions of warpgroups that a kernel has, and what is made of them."""
    if not isinstance(core, WarpgroupCore | AtomCore):
        return []
    *instructions, others = map(text_of, OF_WARPGROUPS)
    return [*instructions, *core.instructions.values(), others]
