"""kvknee: how many requests an LLM server can hold at once, and what stops it there."""

__version__ = "0.1.0"
