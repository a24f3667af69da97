"""Rows of Parquet files as numbered samples. Needs pyarrow (extra `parquet`)."""
