"""Row functions and what their derivation must find: passes over keys, states and accumulators."""

from dataclasses import dataclass

from rows import Rule, V


@dataclass(frozen=True)
class Case:
    """`states` None: any number."""

    rule: Rule
    kv_passes: int = 1
    accumulators: int = 1
    states: int | None = None
    outputs: tuple[str, ...] = ()


def softmax(s: V) -> tuple[V, V]:
    m = s.max("m")
    e = (s - m).exp()
    l = e.sum("l")
    return e / l, m + l.log()


def unshifted(s: V) -> V:
    return s.exp() / s.exp().sum("l")


def sink(s: V) -> V:
    m = s.max("m")
    e = (s - m).exp()
    return e / (e.sum("l") + (s.text.param("%t") - m).exp())


def off_by_one(s: V) -> V:
    m = s.max("m")
    e = (s - m).exp()
    return e / (e.sum("l") + (-m).exp())


def sigmoid(s: V) -> V:
    return 1.0 / (1.0 + (-s).exp())


def relu(s: V) -> V:
    return s.most(0.0)


def relu_squared(s: V) -> V:
    return s.most(0.0) * s.most(0.0)


def relu_normalised(s: V) -> V:
    return relu(s) / (relu(s).sum("a") + 1e-6)


def relu_squared_normalised(s: V) -> V:
    return relu_squared(s) / relu_squared(s).sum("a")


def retention(s: V) -> V:
    return s / s.sum("a").abs().most(1.0)


def retention_parallel(s: V) -> V:
    return s / s.abs().sum("a").detach().most(1.0)


def l2(s: V) -> V:
    return s / (s * s).sum("q").sqrt()


def taylor(s: V) -> V:
    e = 1.0 + s + s * s * 0.5
    return e / e.sum("a")


def layer_norm(s: V) -> V:
    n, mean = s.count("n"), s.mean()
    d = s - mean
    return d / ((d * d).sum("b") / n).sqrt()


def mean_centred(s: V) -> V:
    e = (s - s.mean()).exp()
    return e / e.sum("l")


def std_temperature(s: V) -> V:
    e = (s / ((s * s).sum("b") / s.count("n")).sqrt()).exp()
    return e / e.sum("l")


def threshold(s: V) -> V:
    return (s - s.max("m") + 1.0).most(0.0)


def threshold_normalised(s: V) -> V:
    return threshold(s) / threshold(s).sum("l")


def head_temperature(s: V) -> V:
    t = s.text.param("%t")
    e = (s * t - (s * t).max("m")).exp()
    return e / e.sum("l")


def head_temperature_late(s: V) -> V:
    """The temperature multiplies the shifted score, so that merging needs it."""
    t = s.text.param("%t")
    e = ((s - s.max("m")) * t.abs()).exp()
    return e / e.sum("l")


def softplus(s: V) -> V:
    w = (1.0 + s.exp()).log()
    return w / w.sum("a")


def base_two(s: V) -> tuple[V, V]:
    m = s.max("m")
    e = (s - m).math("exp2")
    l = e.sum("l")
    return e / l, (m + l.math("log2")) * 0.6931471805599453


def shifted_by_min(s: V) -> V:
    e = (s.min("m") - s).exp()
    return e / e.sum("l")


def two_maxima(s: V) -> V:
    m, w = s.max("m"), (-s).max("w")
    e = (s - m).exp() + (-s - w).exp()
    return e


def entropy(s: V) -> tuple[V, V]:
    p, _ = softmax(s)
    return p, -(p * p.log()).sum("entropy")


def largest_weight(s: V) -> tuple[V, V]:
    p, _ = softmax(s)
    return p, p.max("top")


def normalised_score(s: V) -> V:
    return (s - s.min("lo")) / (s.max("hi") - s.min("lo"))


def squared_softmax(s: V) -> V:
    p, _ = softmax(s)
    return p * p


def softmax_of_normalised(s: V) -> V:
    z = s / s.abs().max("m")
    e = (z - 1.0).exp()
    return e / e.sum("l")


def top_one(s: V) -> V:
    hit = s.compare("oge", s.max("m")).where(1.0, 0.0)
    return hit / hit.sum("hits")


def leaky(s: V) -> V:
    e = (s - s.max("m")).exp()
    return s.compare("ogt", 0.0).where(e, e * 0.1) / e.sum("l")


def power_four(s: V) -> V:
    return s.power(4.0) / s.power(4.0).sum("a")


def third_moment(s: V) -> tuple[V, V]:
    n, mean = s.count("n"), s.mean()
    d = s - mean
    return s / n, (d * d * d).sum("skew") / n


def nested_three(s: V) -> V:
    x = (s - s.max("m") + 1.0).most(0.0)
    y = (x - x.max("m2") + 0.5).most(0.0)
    return y / y.sum("l")


def relu_of_weight(s: V) -> V:
    """A factor that is positive may leave the relu."""
    return (s / (s.exp().sum("l") + 1.0)).most(0.0)


def log_sum_exp(s: V) -> tuple[V, V]:
    m = s.max("m")
    lse = m + (s - m).exp().sum("l").log()
    return (s - lse).exp(), lse


def only_some_heads(s: V) -> V:
    """A condition on the head decides what shifts the exponent; merging must know it."""
    high = s.text.param("%t").compare("ogt", 1.0)
    e = (s - high.where(s.max("m"), s.min("w"))).exp()
    return e / e.sum("l")


def nothing_varies(s: V) -> V:
    """Every key gets the same weight."""
    return 1.0 / s.count("n")


CASES: dict[str, Case] = {
    "softmax": Case(softmax, states=2, outputs=("lse",)),
    "softmax without shift": Case(unshifted, states=1),
    "softmax with sink": Case(sink, states=2),
    "softmax off by one": Case(off_by_one, states=2),
    "sigmoid": Case(sigmoid, states=0),
    "relu": Case(relu, states=0),
    "relu squared": Case(relu_squared, states=0),
    "relu normalised": Case(relu_normalised, states=1),
    "relu squared normalised": Case(relu_squared_normalised, states=1),
    "retention": Case(retention, states=1),
    "retention, parallel": Case(retention_parallel, states=1),
    "l2": Case(l2, states=1),
    "taylor": Case(taylor, states=1),
    "layer norm": Case(layer_norm, accumulators=2, states=3),
    "mean-centred softmax": Case(mean_centred, states=4),
    "std temperature": Case(std_temperature, kv_passes=2, states=3),
    "threshold": Case(threshold, kv_passes=2, states=1),
    "threshold normalised": Case(threshold_normalised, kv_passes=2, states=2),
    "temperature per head": Case(head_temperature, states=2),
    "temperature per head, late": Case(head_temperature_late, states=3),
    "softplus": Case(softplus, states=1),
    "base 2": Case(base_two, states=2, outputs=("lse",)),
    "shifted by the minimum": Case(shifted_by_min, states=2),
    "two maxima": Case(two_maxima, accumulators=2, states=2),
    "entropy": Case(entropy, states=3, outputs=("entropy",)),
    "largest weight": Case(largest_weight, states=3, outputs=("top",)),
    "min-max normalised": Case(normalised_score, accumulators=2, states=2),
    "squared softmax": Case(squared_softmax, states=2),
    "softmax of normalised": Case(softmax_of_normalised, kv_passes=2, states=2),
    "top one": Case(top_one, kv_passes=2, states=2),
    "leaky": Case(leaky, states=2),
    "power four": Case(power_four, states=1),
    "third moment": Case(third_moment, outputs=("skew",)),
    "nested thresholds": Case(nested_three, kv_passes=3, states=3),
    "log-sum-exp": Case(log_sum_exp, states=2, outputs=("lse",)),
    "a condition on the head": Case(only_some_heads, states=4),
    "uniform": Case(nothing_varies, states=1),
    "relu of a weight": Case(relu_of_weight, states=1),
}
