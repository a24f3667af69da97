"""What happens when: how a run goes from phase to phase.

`epochs` waits for members and ends epochs, `warmup` decides when everybody has the model, `rounds` starts, finishes and settles
rounds, `round_timing` says how long a round lasts, `statements` handles what members state in warmup and as witnesses.
"""
