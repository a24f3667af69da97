"""A client put together from settings and plugins, and local training without a run. Everything is checked here before a run
is joined.
"""
