"""Runs on a chain: finding and checking them, without taking part.

`runs` finds a run and the authorization to join it, `treasurers` finds who pays and owns it, `cluster` decides whether the
shipped programs may be trusted on this chain, `model_config` reads what the run trains, `transport_key` derives our key in it.
"""
