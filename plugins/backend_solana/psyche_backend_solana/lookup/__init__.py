"""Runs on a chain: finding and checking them, without taking part.

`runs` finds a run and the authorization to join it, `treasurers` who pays and owns it, `cluster` whether the shipped programs may
be trusted on this chain, `model_config` what the run trains, `transport_key` the key that our wallet has in it.
"""
