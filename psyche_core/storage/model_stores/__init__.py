"""Model stores: where a run's models are stored for later members, and how their locations are written.

`interface` defines what a store does, `stores` has the stores for the Hub, for buckets and for shared folders, and `url` reads
`hf://`, `gs://`, `s3://` and `file://`. `client.setup.model_store` chooses a store by a client's options. A new kind of store is
a class in `stores`, a scheme in `url` and a case in both `url` and `client.setup.model_store`. A plugin only stores files by
name: `plugins.model_stores` opens its URL and `BucketStore` does the rest. `training.checkpoints.sources` reads models from these
locations; `storage.object_store` reads and writes a bucket, given by name or URL.
"""
