"""docs/schedule.md and schedule-ampere.md show the IR that the passes make today."""

from schedule_listing import AMPERE, KERNEL, PAGE, kernel, shown, shown_for_ampere, with_listings


def test_listings_of_the_page_are_current() -> None:
    """`python test/unit/schedule_listing.py` writes them again; read what changed."""
    page = PAGE.read_text()
    assert page.count("```mlir\n") == 4
    assert with_listings(page, shown()) == page


def test_listings_of_the_page_on_ampere_are_current() -> None:
    page = AMPERE.read_text()
    assert page.count("```mlir\n") == 3
    assert with_listings(page, shown_for_ampere()) == page


def test_kernel_of_the_page_is_current() -> None:
    assert KERNEL.read_text() == kernel()
