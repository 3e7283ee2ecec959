"""`attn.linear_attention` in the evaluator against its definition as a sum over pairs of positions."""

import numpy as np
import pytest

from attn_mlir.reference import EvaluationError, InputMaker, Sizes, evaluate
from programs import parsed, text_of

SIZES = Sizes(batch=2, heads=4, kv_heads=2, q_len=11)


def factors(g: np.ndarray, forward: bool) -> np.ndarray:
    """exp of the log decays [H, T, C] between positions, [H, T, T, C] by (t, s); 0 where s is absent."""
    length = g.shape[1]
    found = np.zeros((g.shape[0], length, length, g.shape[2]))
    for t in range(length):
        for s in range(t + 1) if forward else range(t, length):
            between = g[:, s + 1 : t + 1] if forward else g[:, t + 1 : s + 1]
            found[:, t, s] = np.exp(between.sum(axis=1))
    return found


def evaluated(name: str, sizes: Sizes = SIZES) -> tuple[list[np.ndarray], list[np.ndarray]]:
    with parsed(text_of(f"linear/{name}")) as module:
        inputs = InputMaker(sizes, 3).make(module)
        return [np.asarray(x, float) for x in inputs], evaluate(module, inputs)


def heads(x: np.ndarray) -> np.ndarray:
    return np.repeat(x, 4 // x.shape[1], axis=1)


def test_mamba2_is_its_sum_over_pairs() -> None:
    (q, k, v, dt, a), (o,) = evaluated("mamba2")
    assert (q.shape[1], v.shape[1]) == (2, 4)
    for b in range(2):
        w = factors((dt[b] * a[:4, None])[..., None], forward=True)[..., 0]
        wanted = (np.einsum("htk,hsk->hts", heads(q)[b], heads(k)[b]) * w) @ (v[b] * dt[b][..., None])
        np.testing.assert_allclose(o[b], wanted, rtol=1e-12, atol=1e-12)


def test_states_pass_through_the_recurrence() -> None:
    (q, k, v, g, initial), (o, final) = evaluated("simple-gla")
    for b in range(2):
        w = factors(g[b][..., None], forward=True)[..., 0]
        since = np.exp(np.cumsum(g[b], axis=1))[..., None]
        wanted = (np.einsum("htk,hsk->hts", heads(q)[b] / 4, heads(k)[b]) * w) @ v[b] + since * (heads(q)[b] / 4 @ initial[b])
        np.testing.assert_allclose(o[b], wanted, rtol=1e-12, atol=1e-12)
        state = np.einsum("hs,hsk,hsv->hkv", w[:, -1], heads(k)[b], v[b]) + since[:, -1:] * initial[b]
        np.testing.assert_allclose(final[b], state, rtol=1e-12, atol=1e-12)


def test_channels_of_keys_decay_apart() -> None:
    (q, k, v, g, initial), (o, final) = evaluated("gla")
    for b in range(2):
        w, since = factors(g[b], forward=True), np.exp(np.cumsum(g[b], axis=1))
        wanted = np.einsum("htk,hsk,htsk,hsv->htv", heads(q)[b], heads(k)[b], w, v[b]) + (heads(q)[b] * since) @ initial[b]
        np.testing.assert_allclose(o[b], wanted, rtol=1e-12, atol=1e-12)
        state = np.einsum("hsk,hsk,hsv->hkv", w[:, -1], heads(k)[b], v[b]) + since[:, -1, :, None] * initial[b]
        np.testing.assert_allclose(final[b], state, rtol=1e-12, atol=1e-12)


def test_channels_of_values_decay_apart() -> None:
    (q, k, v, g, initial, x), (o, products, _) = evaluated("value-channels")
    g = heads(g)
    for b in range(2):
        w, since = factors(g[b], forward=True), np.exp(np.cumsum(g[b], axis=1))
        wanted = np.einsum("htk,hsk,htsv,hsv->htv", heads(q)[b], heads(k)[b], w, heads(v)[b])
        wanted = wanted + since * (heads(q)[b] @ np.swapaxes(initial[b], 1, 2))
        np.testing.assert_allclose(o[b], wanted, rtol=1e-12, atol=1e-12)
        others = wanted - (heads(q)[b] * heads(k)[b]).sum(axis=2, keepdims=True) * heads(v)[b]
        np.testing.assert_allclose(products[b], others * heads(x)[b], rtol=1e-12, atol=1e-12)


def test_a_backward_scan_starts_from_the_far_end() -> None:
    (q, k, v, g, initial, x), (o, final, products, states) = evaluated("backward-scan", Sizes(2, 4, 2, 21))
    q, k, v, g = heads(q), heads(k), heads(v), heads(g)
    for b in range(2):
        w = factors(g[b][..., None], forward=False)[..., 0]
        after = np.exp(np.cumsum(np.pad(g[b], ((0, 0), (0, 1)))[:, :0:-1], axis=1)[:, ::-1])[..., None]
        turned = np.swapaxes(initial[b], 1, 2)
        wanted = (np.einsum("htk,hsk->hts", q[b], k[b]) * w) @ v[b] + after * (q[b] @ turned)
        np.testing.assert_allclose(o[b], wanted, rtol=1e-12, atol=1e-12)
        others = wanted - (q[b] * k[b]).sum(axis=2, keepdims=True) * v[b]
        np.testing.assert_allclose(products[b], (others * x[b]).sum(axis=2), rtol=1e-12, atol=1e-12)
        since = np.exp(np.cumsum(g[b], axis=1))
        state = np.einsum("hs,hsk,hsv->hkv", since, k[b], v[b]) + since[:, -1, None, None] * turned
        np.testing.assert_allclose(np.swapaxes(final[b], 1, 2), state, rtol=1e-12, atol=1e-12)
        later = np.exp(np.cumsum(g[b][:, 16:], axis=1))  # seen from the boundary after 16 positions
        kept, state = states[b].reshape(4, 2, 16, 8), np.einsum("hs,hsk,hsv->hkv", later, k[b][:, 16:], v[b][:, 16:])
        np.testing.assert_allclose(np.swapaxes(kept[:, 1], 1, 2), state + later[:, -1, None, None] * turned, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(kept[:, 0], final[b], rtol=0)


def test_own_terms_are_what_products_leave_out() -> None:
    (q, k, v, g, x, dt), (o, products, _, own) = evaluated("diagonal-terms", Sizes(2, 4, 2, 21))
    q, k, v, g, x = heads(q), heads(k), heads(0.5 * v), heads(g), heads(x)
    for b in range(2):
        sums = (np.einsum("htk,hsk->hts", q[b], k[b]) * factors(g[b][..., None], forward=False)[..., 0]) @ v[b]
        np.testing.assert_allclose(o[b], sums * dt[b, :4, :21, None], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(own[b], (q[b] * k[b]).sum(axis=2) * (v[b] * x[b]).sum(axis=2), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(products[b] + own[b], (sums * x[b]).sum(axis=2), rtol=1e-12, atol=1e-12)


def test_sequences_of_offsets_are_apart() -> None:
    (q, k, v, g, initial, _), _ = evaluated("varlen-states", Sizes(2, 4, 2, 50))
    offsets = np.array([0, 18, 18, 50])
    with parsed(text_of("linear/varlen-states")) as module:
        o, final, states = evaluate(module, [q, k, v, g, initial, offsets])
        for n, (begin, end) in enumerate(((0, 18), (18, 18), (18, 50))):
            part = [x[:, :, begin:end] for x in (q, k, v, g)]
            alone = evaluate(module, [*part, initial[n : n + 1], np.array([0, end - begin])])
            np.testing.assert_allclose(o[:, :, begin:end], alone[0], rtol=0)
            np.testing.assert_allclose(final[n], alone[1][0], rtol=0)
            first, count = (begin // 16 + n) * 16, -(-(end - begin) // 16) * 16
            np.testing.assert_allclose(states[:, :, first : first + count], alone[2][:, :, :count], rtol=0)
        assert states.shape == (1, 4, (50 // 16 + 3) * 16, 8)


@pytest.mark.parametrize("offsets", [[0, 12], [0, 7, 5, 11], [-1, 11]])
def test_offsets_must_cut_the_positions(offsets: list[int]) -> None:
    inputs, _ = evaluated("varlen-states", Sizes(1, 4, 2, 11))
    with parsed(text_of("linear/varlen-states")) as module, pytest.raises(EvaluationError, match="do not cut"):
        evaluate(module, [*inputs[:5], np.array(offsets)])
