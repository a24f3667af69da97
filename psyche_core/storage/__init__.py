"""Files and buckets: folders that appear whole or not at all, scratch files, object stores, and parallel reading and hashing."""
