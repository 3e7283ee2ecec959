"""Thread blocks that wait for others end whichever of them have a multiprocessor; with tiles of their numbers they hang."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import numpy as np
import pytest

from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.emulation import kernel
from attn_mlir.backends.nvidia.passes import draw_tiles
from attn_mlir.backends.nvidia.warp import emitter
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference.warp import Fault, Residency, kernels_of, read_kernel, run_scheduled, schedules_of
from attn_mlir.registry import registry
from contexts import loaded_context
from test_warp_ampere_backward import program as ampere_program
from test_warp_backward import Whole, of_pairs, problem
from test_warp_backward import program as hopper_program
from test_warp_kernels import ADDED, LAUNCH, ROLE, TYPES

TILES, BLOCKS = 7, 3
# Each tile reads, adds its number plus one and writes, after the tile before; a thread block has a fixed share of them.
SHARED = f"""
"warp.kernel"() ({{
^bb0(%sums: !sums, %counters: !counters):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %tiles = arith.constant {TILES} : index
  %id = "warp.block_id"() : () -> index
  %count = "warp.block_count"() : () -> index
  "warp.role"() ({{
  ^bb0(%w: index):
    scf.for %tile = %id to %tiles step %count {{
      %next = arith.addi %tile, %c1 : index
      "warp.order_wait"(%counters, %c0, %tile) : (!counters, index, index) -> ()
      {ADDED}
    }}
  }}) {ROLE}
}}) {LAUNCH}
"""
PARTS = {
    "the last alone": Residency((2, 1, 0), 1),
    "the last first": Residency((2, 1, 0), 2),
    "all but the second": Residency((0, 2, 1), 2),
    "all but the last": Residency((0, 1, 2), 2),
    "the first alone": Residency((0, 1, 2), 1),
}
"""Which thread blocks of three the GPU runs."""


def run(residency: Residency | None, first_drawn: bool | None) -> None:
    """Runs the kernel above in its schedules. `first_drawn`: whether thread blocks draw their first tiles, too; None: they draw none."""
    context = loaded_context()
    with context:
        module = ir.Module.parse(TYPES + SHARED)
        if first_drawn is not None:
            made = draw_tiles._Messages  # pyright: ignore[reportPrivateUsage]
            with mock.patch.object(draw_tiles, "_Messages", lambda *fields: made(*fields[:-1], waits=first_drawn)):
                Pipeline.parse("warp-draw-tiles{draw=true},canonicalize,cse", registry()).run(module)
        (found,) = kernels_of(module)
        read = read_kernel(found)
        for schedule in schedules_of(found).values():
            sums = np.zeros((1, 1, 64))
            run_scheduled(read, [sums, np.zeros(1, np.int64)], schedule, BLOCKS, residency)
            assert (sums == TILES * (TILES + 1) / 2).all()


@pytest.mark.parametrize("part", PARTS)
def test_tiles_that_are_drawn(part: str) -> None:
    run(PARTS[part], True)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("first_drawn", [None, False], ids=["fixed shares", "first tiles by number"])
def test_tiles_of_numbers_hang(part: str, first_drawn: bool | None) -> None:
    """Only where all thread blocks run they end."""
    run(None, first_drawn)
    with pytest.raises(Fault, match=r"deadlock: .*blocks? [\d, ]+ have not begun"):
        run(PARTS[part], first_drawn)


@pytest.fixture(scope="module")
def hopper() -> Whole:
    return of_pairs(hopper_program(pipeline.SCHEDULE, deterministic=True))


@pytest.fixture(scope="module")
def ampere() -> Whole:
    return of_pairs(ampere_program(pipeline.OTHERS, deterministic=1))


@contextmanager
def resident(residency: Residency) -> Iterator[None]:
    """As many thread blocks as the kernel over pairs has tiles, of which these run."""
    ran = partial(run_scheduled, residency=residency)
    with mock.patch.object(kernel, "_BLOCKS", len(residency.begin)), mock.patch.object(kernel, "run_scheduled", ran):
        yield


@pytest.mark.parametrize("part", ["the last alone", "all but the second"])
@pytest.mark.parametrize("chip", ["hopper", "ampere"])
def test_backward_passes_in_a_fixed_order(chip: str, part: str, request: pytest.FixtureRequest) -> None:
    """Three tiles; nothing in the schedule asks for draws on Hopper: waits do."""
    made, _, text = request.getfixturevalue(chip)
    assert "warp.order_wait" in text and "warp.next_tile" in text
    inputs, wanted = problem(300)
    with resident(PARTS[part]):
        got = made.run(inputs)
    for mine, theirs in zip(got, wanted, strict=True):
        assert float((mine.double() - theirs).norm()) <= 2e-3 * float(theirs.norm())


@pytest.mark.parametrize("chip", ["hopper", "ampere"])
def test_backward_passes_with_fixed_shares_hang(chip: str) -> None:
    made_of, passes, ordered = {
        "hopper": (hopper_program, pipeline.SCHEDULE, {"deterministic": True}),
        "ampere": (ampere_program, pipeline.OTHERS, {"deterministic": 1}),
    }[chip]
    made, inputs = made_of(passes.replace("warp-draw-tiles,", ""), **ordered), problem(300)[0]
    with resident(Residency((0, 1, 2), 3)):
        made.run(inputs)
    with resident(PARTS["the last alone"]), pytest.raises(Fault, match="deadlock"):
        made.run(inputs)


def test_kernels_that_wait_and_draw_nothing_are_not_printed() -> None:
    context = loaded_context()
    with context:
        module = ir.Module.parse(TYPES + SHARED)
        (found,) = kernels_of(module)
        with (
            mock.patch.object(emitter, "formed", return_value=(None, found)),
            pytest.raises(UnsupportedError, match="tiles wait for those of lower numbers, and thread blocks do not draw them"),
        ):
            emitter.emit(found, None)  # type: ignore[arg-type]


def test_orders_that_are_none() -> None:
    context = loaded_context()
    with context:
        module = ir.Module.parse(TYPES + SHARED)
        (found,) = kernels_of(module)
        with pytest.raises(ValueError, match="no order of 3 thread blocks"):
            run_scheduled(read_kernel(found), [], schedules_of(found)["fair"], 3, Residency((0, 1), 1))
