"""Tuning for every backend: spaces of schedules, what ranks and what measures them, tune files. It serves no device."""
