"""What the derivation raises; the passes turn it into a located error."""


class DerivationError(Exception):
    """A row program that cannot be put into online form, or not with certainty; the message says why."""
