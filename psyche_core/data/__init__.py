"""Training data as numbered sequences.

`token_files`, the package `parquet` and `sequences` (any dataset object) are formats, `mixture_data` mixes several providers;
`ordering` is the seeded order of sequences, equal everywhere; `text` makes token files from text,
`text_corpus` from the texts of an installed package; `inspection` reports contents.
"""
