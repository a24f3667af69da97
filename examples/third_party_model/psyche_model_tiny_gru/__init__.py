"""A small recurrent language model, as an example of a third-party Psyche plugin."""
