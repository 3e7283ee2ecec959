"""Functions of a user's own module that draw numbers or read the clock."""

import random
from random import random as draw
from time import perf_counter as clock


def jitter() -> float:
    return random.random()


def drawn() -> float:
    return draw()


def tick() -> float:
    return clock()
