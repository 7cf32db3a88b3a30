"""How right this client's times are on this machine: against a server that knows the truth."""
