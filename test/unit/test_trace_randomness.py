"""Random numbers and clocks in a traced function are errors that name the line; those drawn before the call are not."""

import datetime
import gc
import os
import random
import secrets
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from time import monotonic as clock
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import attn_mlir
import trace_helper_module
from attn_mlir import TraceError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.linear import LinearDefinition, trace_linear
from attn_mlir.frontend.program import Definition, trace

Function = Callable[..., Any]
ONES = torch.ones(2)
PYTHON, NUMPY, LEGACY, TORCH = random.Random(0), np.random.default_rng(0), np.random.RandomState(0), torch.Generator()
NORMAL = NUMPY.normal
DROPOUT = torch.nn.Dropout()
DISTRIBUTION = torch.distributions.Bernoulli(torch.tensor(0.5))

DRAWS: dict[str, Function] = {
    "rand": lambda s, h: s * torch.rand(()),
    "randn": lambda s, h: s * torch.randn(2)[h],
    "randint": lambda s, h: s * torch.randint(0, 3, ()),
    "randperm": lambda s, h: s * torch.randperm(2)[h],
    "generator": lambda s, h: s * torch.rand(2, generator=TORCH)[h],
    "rand_like": lambda s, h: s * torch.rand_like(s),
    "randn_like of a tensor": lambda s, h: s * torch.randn_like(ONES)[h],
    "bernoulli": lambda s, h: torch.bernoulli(torch.tensor(0.5)) * s,
    "bernoulli of a value": lambda s, h: torch.bernoulli(s),
    "bernoulli method": lambda s, h: s * ONES.bernoulli()[h],
    "normal": lambda s, h: s * torch.normal(0.0, 1.0, (1,))[0],
    "multinomial": lambda s, h: s * torch.multinomial(ONES, 1)[0],
    "poisson": lambda s, h: s * torch.poisson(ONES)[h],
    "exponential_": lambda s, h: s * torch.empty(2).exponential_()[h],
    "uniform_": lambda s, h: s * ONES.clone().uniform_()[h],
    "dropout": lambda s, h: F.dropout(s),
    "dropout of a tensor": lambda s, h: s * F.dropout(ONES)[h],
    "alpha_dropout": lambda s, h: s * F.alpha_dropout(ONES, training=True)[h],
    "Dropout": lambda s, h: DROPOUT(s),
    "gumbel_softmax": lambda s, h: s * F.gumbel_softmax(ONES, dim=0)[h],
    "distribution": lambda s, h: s * DISTRIBUTION.sample(),
    "operator": lambda s, h: s * torch.ops.aten.rand.default([2])[h],
    "random": lambda s, h: s * random.random(),
    "gauss": lambda s, h: s * random.gauss(0, 1),
    "choice": lambda s, h: s * random.choice([1, 2, 3]),
    "Random": lambda s, h: s * PYTHON.random(),
    "SystemRandom": lambda s, h: s * random.SystemRandom().random(),
    "numpy": lambda s, h: s * np.random.rand(),
    "numpy integer": lambda s, h: s * int(np.random.randint(0, 4)),
    "numpy generator": lambda s, h: s * NUMPY.normal(),
    "numpy generator's method": lambda s, h: s * NORMAL(),
    "numpy state": lambda s, h: s * LEGACY.rand(),
    "new numpy generator": lambda s, h: s * np.random.default_rng().normal(),
    "uuid4": lambda s, h: s * (uuid.uuid4().int % 7),
    "urandom": lambda s, h: s * os.urandom(1)[0],
    "secrets": lambda s, h: s * secrets.randbelow(3),
    "module": lambda s, h: s * trace_helper_module.jitter(),
    "module's name": lambda s, h: s * trace_helper_module.drawn(),
}

CLOCKS: dict[str, Function] = {
    "time": lambda s, h: s * time.time(),
    "perf_counter": lambda s, h: s * time.perf_counter(),
    "name": lambda s, h: s * clock(),
    "datetime": lambda s, h: s * datetime.datetime.now().second,
    "date": lambda s, h: s * datetime.date.today().day,
    "strftime": lambda s, h: s * int(time.strftime("%S")),
    "times": lambda s, h: s * os.times().elapsed,
    "module": lambda s, h: s * trace_helper_module.tick(),
}


def traced(function: Function) -> Any:
    return trace(Definition(lambda s: s, lambda score, b, h, q_idx, kv_idx: function(score, h), scale=1.0), Inputs("f32", 8, 8))


@pytest.mark.parametrize("name", DRAWS)
def test_draws(name: str) -> None:
    with pytest.raises(TraceError, match="draws random numbers") as error:
        traced(DRAWS[name])
    text = str(error.value)
    assert "from a captured tensor" in text and ("dropout_p=" in text) == ("ropout" in name)
    line = f":{DRAWS[name].__code__.co_firstlineno}, in" if "module" not in name else "trace_helper_module.py:"
    assert line in text


@pytest.mark.parametrize("name", CLOCKS)
def test_clocks(name: str) -> None:
    with pytest.raises(TraceError, match="reads the clock") as error:
        traced(CLOCKS[name])
    assert ("trace_helper_module.py:" if name == "module" else f":{CLOCKS[name].__code__.co_firstlineno}, in") in str(error.value)


def test_every_kind_of_function() -> None:
    functions: dict[str, Function] = {
        "mask_mod": lambda b, h, i, j: torch.rand(()) > 0.5,
        "query_mod": lambda x: x * random.random(),
        "row": lambda s: s * np.random.rand(),
    }
    for role, function in functions.items():
        with pytest.raises(TraceError, match=rf"{role} .*draws random numbers"):
            trace(Definition(**{"row": lambda s: s, "scale": 1.0, role: function}), Inputs("f32", 8, 8))
    with pytest.raises(TraceError, match=r"decay_mod .*draws random numbers"):
        trace_linear(LinearDefinition(decay_mod=lambda g: g * torch.rand(()), decay="step"), Inputs("f32", 8, 8))


def test_what_was_drawn_before_and_what_draws_nothing() -> None:
    noise, number, moment = torch.rand(2), random.random(), time.time()
    off = torch.nn.Dropout().eval()
    allowed: list[Function] = [
        lambda s, h: s * noise[h] + number + moment,
        lambda s, h: off(s) + F.dropout(ONES, training=False)[h] + F.dropout(s, 0.5, False),
        lambda s, h: s * datetime.timedelta(2).days + len(os.sep) + uuid.UUID(int=3).int,
        lambda s, h: s if time.sleep(0) is None else -s,
    ]
    for function in allowed:
        traced(function)


def test_draws_of_other_threads_are_not_the_function_s() -> None:
    ended = threading.Event()

    def others() -> None:
        while not ended.is_set():
            random.random()

    thread = threading.Thread(target=others)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        for _ in range(5):
            traced(lambda s, h: s * 2 + ONES[h])
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(before)


def test_states_and_hooks_are_left_alone() -> None:
    before = random.getstate(), torch.get_rng_state()
    traced(lambda s, h: s * ONES.exp()[h] + (time.sleep(0) or 0))
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert sys.getprofile() is None


@pytest.mark.parametrize("name", ["rand", "bernoulli of a value", "dropout", "uniform_"])
def test_inside_compile(name: str) -> None:
    q, k, v = torch.randn(3, 1, 2, 4, 4)
    function = DRAWS[name]
    score_mod = lambda s, b, h, i, j: function(s, h)  # noqa: E731
    compiled = torch.compile(lambda: attn_mlir.attention(q, k, v, score_mod=score_mod), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="draws random numbers") as error:
        compiled()
    assert f"test_trace_randomness.py:{function.__code__.co_firstlineno}, in" in str(error.value)


def test_python_draws_inside_compile() -> None:
    """dynamo makes inputs of the graph of them, also of those that were drawn before the call: they may be read, but for floats.

    What torch declares to be float32 there, and passes as float64, would be read as something else.
    """
    q, k, v = torch.randn(3, 1, 2, 4, 4)

    def before(draw: Function) -> Any:
        number = draw()
        return attn_mlir.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + number * j)

    def inside(draw: Function) -> Any:
        return attn_mlir.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + draw() * j)

    def linear(draw: Function) -> Any:
        return attn_mlir.linear_attention(q, k, v, -torch.ones(1, 2, 4), q_mod=lambda x: x * draw())

    for call in (inside, linear):
        with pytest.raises(Exception, match=r"draws random numbers: random\.randint"):
            torch.compile(call, fullgraph=True, backend="aot_eager")(lambda: random.randint(1, 9))
    with pytest.raises(Exception, match="draw it before the compiled function"):
        torch.compile(before, fullgraph=True, backend="aot_eager")(lambda: random.uniform(0, 1))
    compiled = torch.compile(before, fullgraph=True, backend="aot_eager")
    for seed in (0, 1):
        results = []
        for call in (compiled, before):
            random.seed(seed)
            results.append(call(lambda: random.randint(1, 9)))
        torch.testing.assert_close(*results)


def test_packages_may_read_clocks_when_the_garbage_collector_calls_them() -> None:
    """As Hypothesis does, in the midst of whatever function runs."""
    scope: dict[str, Any] = {"time": time}
    exec(compile("def timed(phase, info):\n    time.perf_counter()\n", "/site-packages/package/hooks.py", "exec"), scope)

    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        gc.collect()
        return s + 1.0

    gc.callbacks.append(scope["timed"])
    try:
        q = torch.randn(1, 1, 3, 4)
        assert attn_mlir.attention(q, q, q, score_mod=mod).shape == q.shape
    finally:
        gc.callbacks.remove(scope["timed"])


def test_an_attention_within_a_function_is_compiled_by_the_clock() -> None:
    """A compiler reads clocks, which is not the function's doing, whatever else the function could reach."""
    q, k, v = torch.randn(3, 1, 2, 9, 8)

    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if len(q) > 1:
            return s * time.time()
        return s * attn_mlir.attention(q, k, v, score_mod=lambda x, *_: (x * 0.3).tanh() * 1.7).mean()

    weights = ((q @ k.mT / 8**0.5 * 0.3).tanh() * 1.7).softmax(-1)
    wanted = (q @ k.mT / 8**0.5 * (weights @ v).mean()).softmax(-1) @ v
    torch.testing.assert_close(attn_mlir.attention(q, k, v, score_mod=mod), wanted)


_FRESH = """
import sys, torch, attn_mlir
def imports(s, b, h, i, j):
    import numpy.random
    return s
def draws(s, b, h, i, j):
    import numpy
    return s * float(numpy.random.rand())
assert "numpy.random" not in sys.modules
q = torch.randn(1, 1, 4, 8)
attn_mlir.attention(q, q, q, score_mod=imports if sys.argv[1] == "imports" else draws)
"""


@pytest.mark.parametrize("name", ["imports", "draws"])
def test_numpy_random_is_imported_while_the_function_is_traced(name: str) -> None:
    ran = subprocess.run([sys.executable, "-c", _FRESH, name], capture_output=True, text=True, check=False)
    assert ("TraceError" not in ran.stderr) == (ran.returncode == 0) == (name == "imports"), ran.stderr
    assert name == "imports" or "draws random numbers" in ran.stderr
