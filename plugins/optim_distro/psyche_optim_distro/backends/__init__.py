"""Implementations of the contracts in `compress` and `update`: `torch` (all devices) and `numba` (CPU). `choice` selects one."""
