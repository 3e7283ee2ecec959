"""What printed code sets and never reads goes, and nothing else."""

import pytest

from attn_mlir.backends.gpu.unread import without_unread


def test_arrays_that_nobody_reads() -> None:
    lines = """
      // The old maxima.
      float old[2];
      float kept[2];
      int first[2];
      #pragma unroll
      for (int h = 0; h < 2; ++h) {
        old[h] = attn::load_shared(shared + 4 * h);
      }
      #pragma unroll
      for (int h = 0; h < 2; ++h) {
        first[h] = min(row + h, n); /*@3*/
        kept[h] = 0.0f;
      }
      x = kept[1];
    """.splitlines()
    left = [line.strip() for line in without_unread(lines) if line.strip()]
    loop = ["#pragma unroll", "for (int h = 0; h < 2; ++h) {", "kept[h] = 0.0f;", "}"]
    assert left == ["// The old maxima.", "float kept[2];", *loop, "x = kept[1];"]


def test_one_after_the_other() -> None:
    """`a` is read for `b` alone, which nobody reads."""
    assert without_unread(["float a[2];", "float b[2];", "a[h] = 1.0f;", "b[h] = a[h];", "}"]) == ["}"]


def test_what_does_something_stays() -> None:
    kept = [
        "float a[2];",
        "a[h] = attn::draw(x);",
        "float b[2];",
        "attn::fill(b);",
        "float c[2];",
        "c[0] += 1.0f;",
        "float d[2] = {0.0f, 0.0f};",
    ]
    assert without_unread(kept) == kept


@pytest.mark.parametrize(
    "lines",
    [
        ["a[h] = attn::draw<4>(x);"],
        ["a[h] = b[i++];"],
        ["a[h] = (b = 1.0f);"],
        ["if (x > 0)", "  a[h] = 1.0f;", "y = 1;"],
        ["else /*@3*/", "  a[h] = 1.0f;", "y = 1;"],
        ['asm volatile("// %0" :: "f"(a[0]));'],
        ["y = 1; // first\nz = a[0];"],
        ["#pragma unroll", "for (int h = 0; h < 2; ++h) a[h] = 1.0f;"],
        ["x = LANES(a);"],
        ["auto &same = a;"],
    ],
)
def test_what_reads_or_does_more_stays(lines: list[str]) -> None:
    assert without_unread(["float a[2];", *lines]) == ["float a[2];", *lines]


def test_loops_that_do_something_stay() -> None:
    """Only those go whose counter is their own, and which call nothing."""
    kept = ["for (; i < n; ++i) {", "}", "for (int turn = 0; !attn::arrived(barrier, turn); ++turn) {", "}", "for (;;) {", "}"]
    assert without_unread([*kept, "float a[2];", "for (int h = 0; h < min(2, n); ++h) {", "a[h] = max(x, 1.0f) <= y;", "}"]) == kept
