"""Random attentions through the API: several calls with changes in place between them; `benchmarks/fuzz_api.py` draws as many as wanted."""

import pytest

from random_calls import attention_errors, linear_errors
from random_compositions import composition_errors, emulated_errors

# Chosen for what they have: tensors in closures that torch computes with, tensors in one object, float32, a strided bshd layout.
ATTENTIONS = (46, 75, 139, 236, 3, 8)
LINEAR = (0, 5, 9, 14)
COMPOSED = (5, 6, 24, 37)
EMULATED = (3, 10, 33)


@pytest.mark.parametrize("number", ATTENTIONS)
def test_random_calls(number: int) -> None:
    told, wrong = attention_errors(number)
    assert not wrong, f"{wrong}\n{told}"


@pytest.mark.parametrize("number", LINEAR)
def test_random_calls_of_linear_attentions(number: int) -> None:
    told, wrong = linear_errors(number)
    assert not wrong, f"{wrong}\n{told}"


@pytest.mark.parametrize("number", COMPOSED)
def test_random_compositions(number: int) -> None:
    told, wrong = composition_errors(number)
    assert not wrong, f"{wrong}\n{told}"


@pytest.mark.parametrize("number", EMULATED)
def test_random_compositions_on_emulated_devices(number: int) -> None:
    told, wrong = emulated_errors(number)
    assert not wrong, f"{wrong}\n{told}"
