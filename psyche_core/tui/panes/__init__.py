"""The tabs of a screen. Each shows a `Watched`; `chart` and `facts` make what they have in common."""
