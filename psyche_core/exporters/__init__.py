"""Where a program's figures go besides screens and files: trackers (each in a thread of its own), and a port for Prometheus.

They are sinks of the event bus, return at once, and never end the program that they watch. What figures there are is said in
`psyche_core.telemetry.metrics`.
"""
