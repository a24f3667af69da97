"""What users configure: run files (`run_config`, their tables in `schema`, rules between keys in `rules`) and program options
(`settings`). `sentences` turns validation errors, and text from others, into sentences for people.
"""
