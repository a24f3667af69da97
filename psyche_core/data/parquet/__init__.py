"""Rows of Parquet files as numbered samples. Needs pyarrow (extra `parquet`).

`files` finds them, `reading` reads columns and row groups, `rows` numbers the samples.
"""
