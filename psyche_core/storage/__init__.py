"""Files and buckets: folders that are written atomically, scratch files, object stores, parallel reading and hashing.

`checkpoint_names` says how checkpoints are named; the package `model_stores` has the stores for a run's models.
"""
