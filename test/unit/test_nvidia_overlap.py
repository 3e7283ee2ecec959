"""Which kernels start beside the one before them, and how they are launched."""

import ctypes

import pytest

from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.kernel import KernelCode, KernelParameter
from attn_mlir.backends.host import Argument, Host, HostStep, KernelGrid, StepResult
from attn_mlir.backends.nvidia import cuda
from attn_mlir.backends.nvidia.overlap import overlapped

_RESULT = StepResult((), Argument("f32", ()))
_SERIALISED_BY_PROGRAMS = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""


def early(
    steps: list[tuple[str, tuple[int, ...]]], returns: tuple[int, ...], arguments: int = 1, parameter: KernelParameter | None = None
) -> list[str]:
    """The kernels that start early of a program whose steps make a value each; names in capitals cannot overlap."""
    host = Host("f", (Argument("f32", ()),) * arguments, tuple(HostStep(name, operands, (_RESULT,)) for name, operands in steps), returns)
    grid = KernelGrid("f", 64, "rows", 0, (), (), False)
    parameters = () if parameter is None else (parameter,)
    units = {
        name: GpuKernel(grid, KernelCode(name, name, "", parameters, 32, 0, overlaps=name.islower()), {}, ())
        for name in dict.fromkeys(name for name, _ in steps)
    }
    return [name for name, unit in overlapped(host, units).items() if unit.code.early]


@pytest.mark.parametrize(
    ("steps", "returns", "expected"),
    [
        ([("a", (0,)), ("b", (0,)), ("C", (1, 2))], (3,), ["b"]),
        ([("a", (0,)), ("b", (1,))], (2,), []),  # reads what the one before makes
        ([("A", (0,)), ("b", (0,))], (1, 2), []),
        ([("a", (0,)), ("B", (0,))], (1, 2), []),
        ([("a", (0,)), ("b", (0,)), ("c", (0,)), ("d", (0,))], (1, 2, 3, 4), ["b", "d"]),  # no three at a time
        ([("K", (0,)), ("a", (1,)), ("b", (0,)), ("C", (2, 3))], (4,), []),  # b's result may lie where value 1 was
        ([("K", (0,)), ("a", (1,)), ("b", (0, 1)), ("C", (2, 3))], (4,), ["b"]),
        ([("a", (0,)), ("b", (0,)), ("C", (1, 2)), ("b", (3,))], (4,), []),  # a kernel is launched in one way
    ],
)
def test_kernels_that_start_beside_the_one_before(
    steps: list[tuple[str, tuple[int, ...]]], returns: tuple[int, ...], expected: list[str]
) -> None:
    assert early(steps, returns) == expected


def test_what_the_first_of_two_reads_lives_as_long_as_both() -> None:
    """Arguments may be copies of a program's own (of negative views, say); the place of what nothing reads is free at once."""
    assert early([("a", (0,)), ("b", (1,)), ("C", (2, 3))], (4,), arguments=2) == []
    assert early([("a", (0,)), ("b", (1,)), ("C", (0, 2, 3))], (4,), arguments=2) == ["b"]
    assert early([("a", (0,)), ("b", (0,)), ("C", (2,))], (3,)) == []  # nothing reads value 1


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [(KernelParameter("pointer", 0), ["b"]), (KernelParameter("pointer", 0, align=8), []), (KernelParameter("descriptor", 0), [])],
    ids=["any", "aligned", "copied by TMA"],
)
def test_kernels_that_read_copies_stay_one_after_another(parameter: KernelParameter, expected: list[str]) -> None:
    assert early([("a", (0,)), ("b", (0,)), ("C", (1, 2))], (3,), parameter=parameter) == expected


@pytest.mark.parametrize("cluster", [1, 2])
def test_launches_say_that_they_start_early(cluster: int) -> None:
    made = cuda.config((4, 1, 1), 128, 0, 0, cluster, early=True)
    assert made.count == (2 if cluster > 1 else 1)
    last = made.keep[made.count - 1]
    assert ctypes.addressof(made.keep) == made.attributes and last.id == _SERIALISED_BY_PROGRAMS and last.value.allowed == 1
    assert cuda.config((4, 1, 1), 128, 0, 0, 1).count == 0
