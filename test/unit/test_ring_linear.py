"""Linear attention over two processes: states pass from rank to rank, forward and backward."""

from collections.abc import Iterator

import pytest

from ranks import Ranks


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(2, tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()


@pytest.mark.parametrize(("form", "initial"), [("head", True), ("step", False), ("channel", True)])
def test_equal_to_one_process(two: Ranks, form: str, initial: bool) -> None:
    assert two.run("ring_linear_cases:compare", form, initial) == [[], []]
