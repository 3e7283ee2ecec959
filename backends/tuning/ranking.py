"""How well a model ranks: its order against that of the clock."""

import math
from collections.abc import Sequence


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """The rank correlation of two lists of numbers: 1 for the same order, -1 for the opposite; NaN where one has no order."""
    if len(first) != len(second):
        raise ValueError(f"ranks of {len(first)} and {len(second)} numbers cannot be compared")
    ranks = [_ranks(each) for each in (first, second)]
    mean = (len(first) - 1) / 2
    a, b = ([rank - mean for rank in each] for each in ranks)
    size = math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / size if size else math.nan


def best_within(predicted: Sequence[float], measured: Sequence[float], top: int) -> float:
    """How much longer the best of the model's first `top` takes than the best of all: 1.0 where it is among them."""
    order = sorted(range(len(predicted)), key=lambda number: predicted[number])
    return min(measured[number] for number in order[:top]) / min(measured)


def _ranks(values: Sequence[float]) -> list[float]:
    """Places in ascending order; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda number: values[number])
    ranks = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end + 1 < len(order) and values[order[end + 1]] == values[order[begin]]:
            end += 1
        for place in order[begin : end + 1]:
            ranks[place] = (begin + end) / 2
        begin = end + 1
    return ranks
