"""Where remote token files are: web servers and buckets, behind one interface.

`factory` chooses among `web_files`, `google_bucket` and `obstore_bucket`; `bucket_files` says which objects are token files.
"""
