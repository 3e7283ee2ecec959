"""The table of float types against torch's, and the conversions that are made of it: all bytes, and the ends of what rounds to each."""

import numpy as np
import pytest
import torch

from attn_mlir import attention
from attn_mlir.dialects.elements import EIGHT_BIT, ELEMENTS
from attn_mlir.float_values import encoded, rounded


def all_numbers(name: str) -> torch.Tensor:
    return torch.arange(256, dtype=torch.int16).to(torch.uint8).view(getattr(torch, ELEMENTS[name].torch))


def around(name: str) -> torch.Tensor:
    """Numbers of f32 at, below and above every number of a type and the middle of two, beyond the largest, tiny ones, and none."""
    numbers = all_numbers(name).float()
    finite = numbers[numbers.isfinite()].double().unique()
    ends = torch.cat([finite, (finite[1:] + finite[:-1]) / 2, torch.tensor([1e-30, 1e-40, 1e6, -1e6, 3e38])]).float()
    inside = ends[ends.abs() <= 1.01 * ELEMENTS[name].largest]
    near = [torch.nextafter(inside, torch.full_like(inside, end)) for end in (-torch.inf, torch.inf)]
    return torch.cat([ends, *near, torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0])])


@pytest.mark.parametrize("name", ELEMENTS)
def test_the_table_is_torchs(name: str) -> None:
    element, info = ELEMENTS[name], torch.finfo(getattr(torch, ELEMENTS[name].torch))
    assert (element.bits, element.largest) == (info.bits, info.max)
    assert info.tiny == 2.0 ** (1 - element.bias)
    if element.is_eight_bit:  # torch's eps of e5m2fnuz is half of what it is
        numbers = all_numbers(name).float()
        assert numbers[numbers > 1].min() == 1 + 2.0**-element.mantissa


@pytest.mark.parametrize("name", EIGHT_BIT)
def test_rounding_of_numbers_is_torchs(name: str) -> None:
    element = ELEMENTS[name]
    x = around(name)
    beyond = x[x.abs() > 1.5 * element.largest].double().numpy()
    np.testing.assert_array_equal(rounded(beyond, element), np.copysign(np.inf, beyond) if element.special == "ieee" else np.nan)
    x = x[~(x.abs() > element.largest)]  # beyond it some versions of torch saturate
    wanted = x.to(getattr(torch, element.torch))
    np.testing.assert_array_equal(rounded(x.double().numpy(), element), wanted.double().numpy())
    codes = torch.tensor([encoded(float(number), element) for number in x])
    same = codes.to(torch.uint8) == wanted.view(torch.uint8)
    assert (same | wanted.float().isnan()).all()


@pytest.mark.parametrize("name", EIGHT_BIT)
def test_kernels_widen_and_round_as_torch_does(name: str) -> None:
    element = ELEMENTS[name]
    numbers, x = all_numbers(name), around(name)
    finite = x[x.isfinite()]
    # One key of weight 1: o is v, rounded to the type of o.
    narrow = torch.zeros(1, 1, 1, 16).to(numbers.dtype)
    o = attention(narrow.float(), narrow, numbers.reshape(1, 1, 1, -1), scale=1.0, out_dtype=torch.float32)
    torch.testing.assert_close(o.flatten(), numbers.float(), rtol=0, atol=0, equal_nan=True)
    ones = torch.ones(len(finite), 1, 1, 16).to(numbers.dtype)
    made = attention(ones.float(), ones, ones, scale=1.0, v_descale=finite[:, None].contiguous(), out_dtype=numbers.dtype)[:, 0, 0, 0]
    wanted = finite.clamp(-element.largest, element.largest).to(numbers.dtype)
    assert torch.equal(made.float(), wanted.float())
