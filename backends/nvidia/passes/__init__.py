"""Passes of the NVIDIA backend."""
