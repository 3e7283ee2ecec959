"""fla's names for the delta rules: what they take without effect, and what they refuse."""

from typing import Any

import pytest
import torch

from attn_mlir import ArgumentError, UnsupportedError, fla, gated_delta_rule, kda

Q, K, V = torch.randn(3, 1, 9, 2, 8).unbind()
G, BETA, STATE = -torch.rand(1, 9, 2), torch.rand(1, 9, 2), torch.randn(1, 2, 8, 8)
CASES: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "misspelt": (fla.chunk_gated_delta_rule, {"g": G, "initial_sate": STATE}, TypeError, "Did you mean 'initial_state'"),
    "shortened": (fla.chunk_delta_rule, {"use_qk_l2norm": True}, TypeError, "Did you mean 'use_qk_l2norm_in_kernel'"),
    "another's": (fla.chunk_delta_rule, {"g": G}, UnsupportedError, "g is not there for delta_rule"),
    "a bound": (fla.chunk_gated_delta_rule, {"g": G, "lower_bound": -2.0}, UnsupportedError, "lower_bound is not there"),
    "channels": (fla.fused_recurrent_gated_delta_rule, {"gk": G}, ArgumentError, "gk must be a tensor of shape"),
    "heads": (fla.fused_recurrent_gated_delta_rule, {"g": G[..., :1], "gk": G.unsqueeze(3) * K.abs()}, ArgumentError, "g must be a tensor"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_would_change_the_result_is_refused(name: str) -> None:
    function, options, error, message = CASES[name]
    with pytest.raises(error, match=message):
        function(q=Q, k=K, v=V, beta=BETA, **options)


def test_arguments_of_kernels_have_no_effect() -> None:
    of_kernels = {"chunk_size": 64, "chunk_indices": None, "cu_seqlens_cpu": None, "safe_gate": True, "use_exp2": False, "A_log": None}
    o, state = fla.chunk_gated_delta_rule(Q, K, V, G, BETA, initial_state=STATE, output_final_state=True, **of_kernels)
    wanted, final = gated_delta_rule(Q, K, V, G, BETA, initial_state=STATE, output_final_state=True)
    assert final is not None and state is not None and torch.equal(o, wanted) and torch.equal(state, final)
    both = fla.fused_recurrent_gated_delta_rule(Q, K, V, g=G, gk=G.unsqueeze(3) * K.abs(), beta=BETA, **of_kernels)[0]
    assert torch.equal(both, kda(Q, K, V, G.unsqueeze(3) + G.unsqueeze(3) * K.abs(), BETA)[0])
