"""Implementations of the contracts in `compress` and `update`: `torch` (all devices) and `numba` (CPU). `choice` selects one.

All give the same bits in `update`; `compress` may differ in bits that no other replica depends on.
"""
