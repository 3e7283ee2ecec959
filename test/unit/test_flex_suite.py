"""The table of PyTorch's tests: every test that it names exists here."""

import re
from pathlib import Path

import flex_suite

HERE = Path(__file__).parent
ELSEWHERE = ("flex_helpers", "autograd_functions", "vectors")


def test_every_test_of_pytorch_is_covered_or_has_a_reason() -> None:
    counts = {name: len(tests) for name, tests in flex_suite.SUITE.items()}
    assert counts == {
        "TestFlexAttention": 115,
        "TestBlockMask": 28,
        "TestPagedAttention": 6,
        "TestLearnableBiases": 22,
        "TestFlexDecoding": 54,
    }
    internal, without = [], []
    known: dict[str, set[str]] = {}
    for tests in flex_suite.SUITE.values():
        for name, covered in tests.items():
            if covered is flex_suite.INDUCTOR:
                internal.append(name)
            elif ": test_" not in covered:
                without.append(name)
            else:
                for one in covered.split(", "):
                    module, test = one.split(": ")
                    if module not in known:
                        path = HERE / (f"test_{module}.py" if module in ELSEWHERE else f"test_flex_{module}.py")
                        known[module] = set(re.findall(r"^def (test_\w+)", path.read_text(), re.M))
                    assert test in known[module], f"{name} is said to be covered by {one}, which does not exist"
    assert len(internal) == 23
    assert sorted(without) == [
        "test_allocate", "test_device_cuda_1", "test_large_batch_heads_grid_dimension", "test_page_allocation", "test_update",
    ]  # fmt: skip
