"""Experiments that compare settings by training. They help to choose settings; a run does not use them."""
