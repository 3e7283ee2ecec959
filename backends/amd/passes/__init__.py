"""Passes of the AMD backend."""
