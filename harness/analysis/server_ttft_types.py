"""The server's own TTFT beside the client's: what the report shows of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerTtft:
    """Mean TTFT of the same stretch of a level, told by both sides; seconds.

    The server's is the increase of its histogram's sum over that of its count between two
    scrapes. The client's is the mean over the requests whose first token arrived between
    the same two. The populations differ by the requests whose first token was on its way
    at a scrape, and by other clients' requests: ``server_n`` and ``client_n`` tell.
    """

    #: the two scrapes, monotonic
    start_s: float
    end_s: float
    server_mean_s: float
    server_n: int
    client_mean_s: float
    client_n: int
    #: client minus server: the way there and back, and what the server does before its
    #: clock starts and after it has stopped
    difference_s: float
    #: part of the server's mean that a request waited for its turn; None where not stated
    queue_mean_s: float | None
