"""Passes of the CPU backend."""
