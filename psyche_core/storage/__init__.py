"""Files and buckets: folders that are written atomically, scratch files, object stores, parallel reading and hashing.

`checkpoint_names` defines the names of checkpoints; the package `model_stores` has the stores for a run's models.
"""
