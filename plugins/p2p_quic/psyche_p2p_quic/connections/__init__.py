"""Connections with the members of an epoch.

`mesh` decides whom to dial, accept and refuse, `session` runs one connection, `leaving` ends those of guests, and `gossip` passes
messages on. The others are pure: `control_protocol` decides which frame answers which, `control_frames` encodes frames, `guests`
decides who may stay that is no neighbour, `which_stays` which of two connections does, `published` what of an address may be
dialled, `dial_ranges` and `dial_budget` which addresses and how often, and `reputation` records which peers broke the rules.
"""
