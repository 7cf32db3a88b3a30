"""What a simulated server is told: checked values, nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from harness.errors import OptionError
from servers.simulated.distributions import Duration, Sizes
from servers.simulated.faults import FaultPlan

Ends = Literal["lf", "crlf", "cr"]
Body = Literal["chunked", "close-delimited", "content-length"]
FRAMINGS = ("lf", "crlf", "cr", "no-space", "comments", "role-first", "multi-line", "split")


@dataclass(frozen=True)
class Framing:
    """How the events of a stream are written; all are valid."""

    ends: Ends = "lf"
    #: ``data:{...}``
    no_space: bool = False
    #: a comment when the answer begins and before every event
    comments: bool = False
    #: an event with a role and no text as soon as the request is read
    role_first: bool = False
    #: the JSON goes over several ``data:`` lines
    multi_line: bool = False
    #: an event is written in two parts, some milliseconds apart
    split: bool = False

    @property
    def plain(self) -> bool:
        """Whether events look as vLLM writes them."""
        return self == Framing(role_first=self.role_first)


@dataclass(frozen=True)
class Wire:
    """How answers go over the connection."""

    framing: Framing = field(default_factory=Framing)
    body: Body = "chunked"
    close: bool = False
    continue_100: bool = False


@dataclass(frozen=True)
class Pace:
    """Mode *paced*: when tokens are due."""

    ttft: Duration
    itl: Duration
    sizes: Sizes = field(default_factory=Sizes)


@dataclass(frozen=True)
class ServerSettings:
    """Everything that all modes share."""

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "simulated"
    max_model_len: int = 131_072
    seed: int = 0
    wire: Wire = field(default_factory=Wire)
    faults: FaultPlan = field(default_factory=FaultPlan)
    tls_cert: str | None = None
    tls_key: str | None = None


def parse_framing(text: str, option: str = "--framing") -> Framing:
    """Read names joined by commas; raises OptionError."""
    names = [name.strip() for name in text.split(",")]
    ends = [name for name in names if name in get_args(Ends)]
    if len(ends) > 1 or any(name not in FRAMINGS for name in names):
        raise OptionError(option, text, f"names of {', '.join(FRAMINGS)}, with one end of line")
    return Framing(
        ends=cast("Ends", ends[0]) if ends else "lf",
        no_space="no-space" in names,
        comments="comments" in names,
        role_first="role-first" in names,
        multi_line="multi-line" in names,
        split="split" in names,
    )
