"""Puts a client together from settings and plugins, and trains locally without a run.

Everything is checked here before the client joins a run.
"""
