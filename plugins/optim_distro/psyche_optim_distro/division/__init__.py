"""One optimizer divided among the ranks of one client.

`table` says which rows of blocks each part holds, `votes` cuts decoded payloads and joins selections, `part` is what a rank
holds, `divided` is the `Optimizer` on rank 0.
"""
