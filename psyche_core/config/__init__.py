"""User configuration: the files of a run and the options of programs (the package `options`).

`run_config` reads `state.toml` and `data.toml`; their tables are in `schema` and `data_file`, rules between keys in `rules`, the
texts of the reference page in `key_descriptions`. `sentences` turns validation errors into readable sentences.
"""
