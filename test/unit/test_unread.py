"""What printed code sets and never reads goes, and nothing else."""

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
