"""Finds good schedules: a model of the chip ranks candidates, a table holds those that were measured, a tuner measures more."""
