"""The tabs of a screen. Each shows a `Watched`.

A module NAME_pane for each tab; `pane` is what all have in common, `chart` and `facts` make what several show.
"""
