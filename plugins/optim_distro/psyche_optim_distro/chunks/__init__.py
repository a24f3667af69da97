"""Cuts a model's parameters into chunks: their shapes, their places in memory, and their discrete cosine transform.

`layout` is the parameter table, `transform` and `precision` the DCT, `tiles` are the pieces processed at a time, `rates` finds
parts with equal rates, and `blocked_buffer` gives access by name to a buffer of chunks.
"""
