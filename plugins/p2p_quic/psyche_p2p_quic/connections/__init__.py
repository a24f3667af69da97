"""Connections with the members of an epoch.

`mesh` decides whom to dial, accept and refuse, and `session` runs one connection. The others are pure: `control_protocol` decides
which frame answers which, `control_frames` encodes frames, `dial_ranges` and `dial_budget` decide which addresses may be dialled
and how often, and `reputation` records which peers broke the rules.
"""
