"""From accepted payloads to the direction of a step, in integers: equal bits on every replica.

`aggregation` takes the mean over senders, `normalization` gives each the weight of one voter, `integer_idct` transforms back;
`clip` and `rmsprop` are the second stages that a run may choose.
"""
