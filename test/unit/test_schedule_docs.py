"""docs/schedule.md shows the IR that the passes make today."""

from schedule_listing import KERNEL, PAGE, kernel, with_listings


def test_listings_of_the_page_are_current() -> None:
    """`python test/unit/schedule_listing.py` writes them again; read what changed."""
    page = PAGE.read_text()
    assert page.count("```mlir\n") == 4
    assert with_listings(page) == page


def test_kernel_of_the_page_is_current() -> None:
    assert KERNEL.read_text() == kernel()
