"""Nights compared with nights: stored figures, and a gate that judges the newest run."""
