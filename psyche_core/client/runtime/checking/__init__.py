"""How a client takes part in challenges of shares (protocol section 7): it keeps data, shows it, recomputes and compares.

`client.machine.verification` decides what is to be done. This package does it, with a model, its optimizer and a transport.
"""
