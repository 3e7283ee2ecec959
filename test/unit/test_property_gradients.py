"""Random attentions: what is derived agrees with autograd of the same functions, applied densely, in float64."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gradient_checks import errors
from random_attentions import random_attention

EXAMPLES = 40
TOLERANCE = 1e-9


@settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None)
@given(st.data())
def test_random_attention(data: st.DataObject) -> None:
    made = random_attention(lambda count: data.draw(st.integers(0, count - 1)))
    wrong = {name: error for name, error in errors(made.case, second=True).items() if not error <= TOLERANCE}
    assert not wrong, f"relative errors above {TOLERANCE}: {wrong}\n{made.text}"
