"""User configuration: run files (`run_config`, their tables in `schema`, rules between keys in `rules`) and program options
(the package `options`). `sentences` turns validation errors into readable sentences and makes text from other machines safe to
show.
"""
