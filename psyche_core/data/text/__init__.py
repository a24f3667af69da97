"""From texts to tokens.

`documents` reads texts in pieces that fit in memory, `tokenizer_files` loads tokenizers, `tokenizing` writes token files.
"""
