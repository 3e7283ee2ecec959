"""A model of what attention over ranks costs: bytes, FLOPs and memory of each strategy, and the time that they take at given rates."""

import dataclasses
import math

RING, ALL_GATHER, ULYSSES = "ring", "all_gather", "ulysses"
STRATEGIES = (RING, ALL_GATHER, ULYSSES)


@dataclasses.dataclass(frozen=True)
class RankModel:
    """Of one rank: FLOP/s of attention, bytes/s that it sends (and receives at the same time), seconds of a message, bytes of memory."""

    flops: float = 600e12
    bandwidth: float = 350e9
    latency: float = 20e-6
    memory: float = 60e9


CPU = RankModel(flops=50e9, bandwidth=1e9, latency=200e-6, memory=16e9)


@dataclasses.dataclass(frozen=True)
class CutProblem:
    """An attention that is cut over `ranks`. `seen`: the share of all pairs of queries and keys that the mask keeps; `sent`, of all keys
    of other ranks, those that a rank needs."""

    ranks: int
    batch: int
    query_heads: int
    key_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    element: int = 2
    seen: float = 0.5
    sent: float = 1.0
    backward: bool = False

    @property
    def flops(self) -> float:
        """Of one rank."""
        pairs = self.batch * self.query_heads * self.queries * self.keys * self.seen / self.ranks
        return pairs * 2 * (self.head_dim + self.value_dim) * (3.5 if self.backward else 1.0)

    @property
    def key_bytes(self) -> float:
        """Of the keys and values of one rank."""
        return self.batch * self.key_heads * self.keys / self.ranks * (self.head_dim + self.value_dim) * self.element

    @property
    def query_bytes(self) -> float:
        """Of the queries and results of one rank."""
        return self.batch * self.query_heads * self.queries / self.ranks * (self.head_dim + self.value_dim) * self.element


@dataclasses.dataclass(frozen=True)
class StrategyCost:
    """What a strategy costs one rank: bytes sent, bytes of memory beside its own shards, and seconds."""

    strategy: str
    sent: float
    memory: float
    seconds: float


def cost(strategy: str, problem: CutProblem, machine: RankModel) -> StrategyCost:
    """The cost of a strategy; infinite where it cannot be or its memory is not there."""
    others, compute = problem.ranks - 1, problem.flops / machine.flops
    gradients = 2 * problem.key_bytes * 4 / problem.element if problem.backward else 0.0
    if strategy == RING:
        shard = problem.key_bytes * problem.sent
        sent = others * (shard * (2 if problem.backward else 1) + gradients / 2 * problem.sent)
        memory = 2 * shard + gradients * problem.sent
        steps = math.ceil(others * problem.sent) * (2 if problem.backward else 1)  # with nothing to send there is no message
        busy = max(compute, sent / machine.bandwidth + steps * machine.latency)
        seconds = busy + shard / machine.bandwidth / max(others, 1) + 0.03 * compute * min(others, 4) / 4
    elif strategy == ALL_GATHER:
        sent = others * (problem.key_bytes * (1 if not problem.backward else 1 + 1))
        memory = problem.ranks * (problem.key_bytes + gradients)
        seconds = compute + sent / machine.bandwidth + 2 * machine.latency * max(others, 1)
    else:
        share = others / problem.ranks
        sent = share * (problem.query_bytes + problem.key_bytes) * (2 if problem.backward else 1)
        memory = problem.query_bytes + problem.key_bytes
        seconds = compute + sent / machine.bandwidth + 4 * machine.latency * max(others, 1)
        if problem.key_heads % problem.ranks or problem.query_heads % problem.ranks:
            seconds = float("inf")
    if memory > machine.memory:
        seconds = float("inf")
    return StrategyCost(strategy, sent, memory, seconds)


def cheapest(problem: CutProblem, machine: RankModel, strategies: tuple[str, ...] = STRATEGIES) -> StrategyCost:
    """The strategy that takes the least time; the ring where none has the memory."""
    costs = [cost(strategy, problem, machine) for strategy in strategies]
    best = min(costs, key=lambda each: each.seconds)
    return best if best.seconds < float("inf") else costs[0]
