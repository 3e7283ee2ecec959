"""Interval analysis of index arithmetic: what a mask or a tensor index can be over a box of positions."""
