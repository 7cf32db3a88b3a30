"""Figures for people: summary.json, terminal, Markdown, HTML; converts units."""
