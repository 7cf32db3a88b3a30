"""What the master knows of one worker."""

from __future__ import annotations

from harness.load.distributed.intake import Intake
from harness.load.distributed.messages import Hello, Progress, Ready
from harness.records import Scalar

#: A worker that was silent for so long is lost: it speaks at least once a second.
LOST_AFTER_S = 5.0


class Remote:
    """One worker, from its first word on."""

    def __init__(self, client_id: str, name: str, hello: Hello, now_s: float) -> None:
        self.client_id = client_id
        self.name = name
        self.hello = hello
        #: when anything was last heard of it
        self.heard_s = now_s
        self.ready: Ready | None = None
        self.progress: Progress | None = None
        self.intake = Intake(name)
        self.lost = False

    @property
    def where(self) -> str:
        """For people: ``w2 (process 4711 on host)``."""
        host = self.hello.host
        return f"{self.name} (process {host.pid} on {host.name})"

    def begin(self) -> None:
        """A run begins: nothing of it is known yet."""
        self.progress = None
        self.intake = Intake(self.name)
        self.lost = False

    def is_silent(self, now_s: float) -> bool:
        """Whether it has not been heard for longer than a living worker would be."""
        return now_s - self.heard_s > LOST_AFTER_S

    @property
    def waits(self) -> bool:
        """Whether something of it is still to come."""
        return not self.lost and not self.intake.complete

    def loss(self) -> dict[str, Scalar]:
        """What is known of what went missing with it, for a ``worker_lost`` event."""
        made_s = self.intake.made_s
        told = self.progress.records if self.progress is not None else 0
        return {
            "worker": self.name,
            "host": self.hello.host.name,
            "pid": self.hello.host.pid,
            "last_seq": self.intake.last_seq,
            "records": self.intake.records,
            # it may have made more after its last word, and some requests were in flight
            "records_lost": max(0, told - self.intake.records),
            "unshipped_s": None if made_s is None else round(max(0.0, self.heard_s - made_s), 3),
        }

    def facts(self) -> dict[str, Scalar]:
        """For the manifest's environment."""
        hello, ready = self.hello, self.ready
        own = f"worker_{self.name}"
        found: dict[str, Scalar] = {
            f"{own}_host": hello.host.name,
            f"{own}_pid": hello.host.pid,
            f"{own}_kvknee": hello.version,
        }
        if ready is not None:
            found[f"{own}_clock_offset_s"] = ready.clock_offset_s
            found[f"{own}_clock_uncertainty_s"] = ready.clock_uncertainty_s
            found[f"{own}_nice"] = ready.nice
        return found
