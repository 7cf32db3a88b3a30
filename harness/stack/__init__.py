"""The local servers without Docker: models, start, wait until healthy, stop."""
