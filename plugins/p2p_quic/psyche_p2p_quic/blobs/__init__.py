"""Blobs: serving them from the store or from offers, and fetching them from several members.

`exchange` does both over the sessions of the mesh. `hedging` decides which sources are asked at the same time, `frames` are the
request and the answer (both pure).
"""
