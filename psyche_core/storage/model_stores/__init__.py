"""Model stores: where a run's models are stored for later members, and how such a place is written.

`interface` says what a store does, `stores` has those of the Hub, of buckets and of shared folders, `url` reads `hf://`,
`gs://`, `s3://` and `file://`. `client.setup.model_store` chooses by a client's options. A new kind of store is a class in
`stores`, a scheme in `url` and a case there; a plugin adds one that holds files by name, for which `plugins.model_stores` opens
the URL and `BucketStore` does the rest. Models are read from such places in `training.checkpoints.sources`; the bucket
itself, by name or URL, is in `storage.object_store`.
"""
