"""From an online program to the row that it computes: folding, linearity of the end, and the numeric confirmation."""
