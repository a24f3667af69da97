"""What users configure: run files (`run_config`, their tables in `schema`, rules between keys in `rules`) and program options
(`settings`). `sentences` turns validation errors, and texts of others, into sentences for people.
"""
