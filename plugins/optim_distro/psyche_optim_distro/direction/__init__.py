"""Computes the direction of a step from accepted payloads, in integers: equal bits on every replica.

`aggregation` computes the mean over senders, `normalization` gives each sender the weight of one voter, and `integer_idct`
transforms back; `clip`, `orthogonal` and `rmsprop` are the second stages that a run may choose.
"""
