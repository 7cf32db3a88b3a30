"""Whether the commands of the schedules exist: make's targets, kvknee's verbs and options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from harness.cli import cli

ROOT = Path(__file__).parents[2]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check_command(words: Sequence[str]) -> None:
    """Assert that kvknee has this verb with these options, and that a suite is there."""
    verb, *rest = words
    command = cli.commands.get(verb)
    assert command is not None, f"kvknee {verb}: expected one of {', '.join(cli.commands)}"
    known = {
        name: option
        for option in command.params
        if isinstance(option, click.Option)
        for name in option.opts
    }
    place = 0
    while place < len(rest):
        word = rest[place]
        if word.startswith("-"):
            assert word in known, f"kvknee {verb} {word}: expected one of {', '.join(known)}"
            place += 1 if known[word].is_flag else 2
            continue
        if word.endswith(".toml"):
            assert (ROOT / word).is_file(), word
        place += 1
