"""The tabs of a screen. Each shows a `Watched`.

Each tab has a module NAME_pane. `pane` is their base class; `chart` and `facts` make what several of them show.
"""
