"""Files and buckets: folders that are written atomically, scratch files, object stores, and parallel reading and hashing."""
