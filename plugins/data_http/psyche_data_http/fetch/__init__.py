"""Fetches sequences: range requests, retries and the disk cache.

`sequences` fetches, with `cache` and the HTTP `client`; `range_plan` and `range_responses` decide, without I/O.
"""
