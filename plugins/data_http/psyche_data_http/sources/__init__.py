"""The sources of remote token files: web servers and buckets, behind one interface.

`factory` chooses among `web_files`, `google_bucket` and `obstore_bucket`; `bucket_files` decides which objects are token files.
"""
