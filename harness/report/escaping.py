"""Text of others in Markdown."""

from __future__ import annotations

from harness.errors import printable


def escaped(text: str) -> str:
    """Text that neither Markdown nor HTML inside it takes for markup, on one line."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for char in "\\`*_[]|~$":
        text = text.replace(char, f"\\{char}")
    return text
