"""User configuration: the files of a run and the options of programs (the package `options`).

`run_config` reads `state.toml` and `data.toml`; their tables are in `schema` and `data_file`, rules between keys in `rules`.
`sentences` turns validation errors into readable sentences. What each key is for is in `tools/run_configuration_keys.py`.
"""
