"""How a real client takes part in challenges of shares (protocol section 7): what it keeps, shows, recomputes and compares.

The machine decides what is due (`client.machine.verification`); here it is done with a model, its optimizer and a transport.
"""
