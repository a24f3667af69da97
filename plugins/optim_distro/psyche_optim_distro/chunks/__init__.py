"""How a model's parameters are cut into chunks, where those lie in memory, and their discrete cosine transform.

`layout` is the parameter table, `transform` and `precision` the DCT, `tiles` the pieces that are processed at a time, `rates`
parts with equal rates, `blocked_buffer` access by name to a buffer of chunks.
"""
