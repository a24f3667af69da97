"""What follows from a round's values: who trains which samples, who witnesses them, and which results are accepted.

`committee` elects, `assignment` and `requeue` say who gets which samples, `batch_size` how many; `shuffle` has the permutations.
`witness` evaluates the witnesses' statements, which contain a `bloom_filter` and a `merkle_root` over commitments.
"""
