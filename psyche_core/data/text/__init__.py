"""From texts to tokens: documents, tokenizers, folders of token files."""
