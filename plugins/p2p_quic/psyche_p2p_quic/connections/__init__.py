"""Connections with the members of an epoch.

`mesh` decides whom to dial, accept and refuse, `session` runs one connection. The others are pure: `control_protocol` says which
frame answers which, `control_frames` how frames become bytes, `dial_ranges` and `dial_budget` which addresses may be dialled and
how often, `reputation` who has misbehaved.
"""
