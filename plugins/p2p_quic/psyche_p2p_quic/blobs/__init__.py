"""Blobs: serves them from the store or from offers, and fetches them from several members.

`exchange` does both over the sessions of the mesh. `hedging` decides which sources are asked at the same time, and `frames`
defines request and answer (both pure).
"""
