"""What the requests in flight hold at one moment, by the client's own records.

A request that has received j tokens has K and V of its prompt and of j - 1 tokens stored: those
of the newest are made by the step that makes its successor. Before its first token a request
waits or is being prefilled. Which of the two it is, the records alone do not tell: the server
states how many run, and it starts them in the order in which they came. How far a prefill is
follows from its time, chunk by chunk, since its start (the first token of the request before it)
and its end (its own first token) are on record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.table import CellTable, Floats, Ints
from harness.analysis.throughput import prompt_tokens

#: Moments looked at in one level: more say nothing new, and each costs time.
MAX_MOMENTS = 400
#: Where a page lies from the middle of its request, in seconds: a busy server makes it late, and
#: sends no token while it does. Tried in this order where the server counts tokens itself.
_SHIFTS_S = (0.0, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.013, 0.016, 0.02, -0.001, -0.002)
#: No request receives more tokens than this within the longest shift.
_TOKENS_PER_SHIFT = 20


@dataclass(frozen=True)
class Moment:
    """One scrape, and what the client knows of the requests that the server ran then.

    Arrays are over the requests that were admitted, shape [n].
    """

    #: of the scrape
    t_s: float
    #: tokens whose K and V are stored; 0 while the first chunk is being read
    stored: Floats
    #: whether its first token has arrived
    decoding: Floats
    #: tokens of its prompt
    prompt: Floats
    #: prompt + asked output, in tokens
    promised: Floats
    #: prompt tokens that came out of the prefix cache
    cached: Floats
    #: requests in flight, those that wait included
    in_flight: int

    @property
    def settled(self) -> bool:
        """Whether no prompt is being read."""
        return bool(self.decoding.all())

    @property
    def held(self) -> Floats:
        """``stored`` of the requests that hold anything."""
        return self.stored[self.stored > 0]


@dataclass(frozen=True)
class Sample:
    """When a server was scraped, and what it said of its requests; None: not stated."""

    t_s: float
    running: float | None
    waiting: float | None
    #: tokens that the server itself counts, all of them: they date its page among the client's
    tokens: float | None = None


class Holdings:
    """The requests of one cell, ready to be asked what they held at a time."""

    def __init__(self, table: CellTable, chunk: int | None, *, vllm: bool) -> None:
        """``chunk``: prompt tokens that one step reads at most; None: a prompt at once.

        ``vllm``: the server counts a request as running only once its first chunk is stored,
        not from its admission on, and may preempt one that runs.
        """
        sent = np.flatnonzero(~np.isnan(table.sent_s))
        # oldest first: the order in which a server takes them
        self._rows = sent[np.argsort(table.sent_s[sent], kind="stable")]
        rows = self._rows
        self._table = table
        self._chunk = chunk
        self._vllm = vllm
        self._sent = table.sent_s[rows]
        self._first = self._sent + table.first_s[rows]
        last = self._sent + table.last_s[rows]
        # a request that failed is held until the client let go of it
        self._end = np.where(table.ok[rows] & ~np.isnan(last), last, table.end_s[rows])
        self._prompt = prompt_tokens(table)[rows].astype(np.float64)
        self._promised = self._prompt + table.asked_output[rows]
        self._cached = np.maximum(table.cached_tokens[rows], 0).astype(np.float64)
        self._firsts = np.sort(self._first[~np.isnan(self._first)])

    def moments(self, samples: Sequence[Sample]) -> Iterator[Moment]:
        """The moments at which client and server agree on how many requests there are."""
        for sample in thinned(samples):
            moment = self._dated(sample)
            if moment is not None:
                yield moment

    def _dated(self, sample: Sample) -> Moment | None:
        """The moment near a sample at which both sides count as many tokens, else the sample's.

        None where the server speaks of another moment: with no prompt being read, both counts
        are exact, so one that is far off is of a request before or after those on record.
        """
        plain = self._at(sample, 0.0)
        if sample.tokens is None:
            return plain
        near = _near(plain, sample.tokens)
        if plain is not None and not near and not plain.settled:
            return plain
        for shift_s in _SHIFTS_S:
            moment = self._at(sample, shift_s) if shift_s else plain
            if moment is not None and float(moment.stored.sum()) == sample.tokens:
                return moment
        return plain if near else None

    def _at(self, sample: Sample, shift_s: float) -> Moment | None:
        """None where a request has just left one side and not reached the other.

        vLLM's figures are all of one step: where as many run as have a first token, it does not
        matter whether the others wait or are on their way.
        """
        at_s = sample.t_s + shift_s
        flying = np.flatnonzero((self._sent <= at_s) & (self._end > at_s))
        begun = self._first[flying] <= at_s
        decoding, unseen = flying[begun], flying[~begun]
        reading = unseen[:0]
        if sample.running is not None:
            running = round(sample.running)
            told = running if sample.waiting is None else round(sample.running + sample.waiting)
            if (
                sample.waiting is not None
                and told != flying.size
                and not (self._vllm and running == decoding.size)
            ):
                return None
            if running < decoding.size:
                decoding = self._not_preempted(decoding, running)
            reading = unseen[: running - decoding.size]
            if decoding.size + reading.size != running:
                return None
        rows = np.concatenate([decoding, reading])
        return Moment(
            t_s=sample.t_s,
            stored=np.concatenate([self._stored(decoding, at_s), self._read(reading, at_s)]),
            decoding=np.repeat([1.0, 0.0], [decoding.size, reading.size]),
            prompt=self._prompt[rows],
            promised=self._promised[rows],
            cached=self._cached[rows],
            in_flight=int(flying.size),
        )

    def _not_preempted(self, decoding: Ints, running: int) -> Ints:
        """Those that run: vLLM takes the latest one's blocks away and lets it wait."""
        if not self._vllm:
            return decoding
        return np.sort(decoding[np.argsort(self._first[decoding], kind="stable")[:running]])

    def _stored(self, rows: Ints, at_s: float) -> Floats:
        """Prompt and received tokens but the newest, shape [rows]."""
        received = np.array([self._received(int(row), at_s) for row in rows])
        return np.asarray(self._prompt[rows] + np.maximum(received - 1.0, 0.0))

    def _received(self, row: int, at_s: float) -> float:
        """Tokens of one request that had arrived; its N sets right what events did not count."""
        table, place = self._table, int(self._rows[row])
        start, stop = int(table.offsets[place]), int(table.offsets[place + 1])
        since_us = (at_s - self._sent[row]) * 1e6
        elapsed = np.cumsum(table.token_us[start:stop])
        seen = int(np.searchsorted(elapsed, since_us, side="right"))
        tokens = float(table.token_n[start : start + seen].sum())
        total, stated = int(table.tokens_seen[place]), int(table.output_tokens[place])
        return tokens * stated / total if total > 0 and stated > 0 else tokens

    def _read(self, rows: Ints, at_s: float) -> Floats:
        """Prompt tokens read so far by requests that are being prefilled, shape [rows]."""
        before = np.searchsorted(self._firsts, at_s, side="right")
        begun = float(self._firsts[before - 1]) if before else -np.inf
        start = np.maximum(self._sent[rows], begun)
        first = self._first[rows]
        # one that never got a token has no end to measure by: its first chunk is all that is sure
        length = np.where(np.isnan(first), np.inf, first - start)
        share = np.clip((at_s - start) / np.maximum(length, 1e-9), 0.0, 1.0)
        prompt = self._prompt[rows]
        chunk = prompt if self._chunk is None else np.minimum(prompt, float(self._chunk))
        chunks = np.ceil(prompt / np.maximum(chunk, 1.0))
        done = np.floor(share * chunks)
        if self._vllm:
            done = np.maximum(done, 1.0)
        return np.asarray(np.minimum(done * chunk, prompt), dtype=np.float64)


def _near(plain: Moment | None, tokens: float) -> bool:
    """Whether a shift can bring both counts together."""
    if plain is None:
        return True
    most = _TOKENS_PER_SHIFT * plain.stored.size
    return abs(float(plain.stored.sum()) - tokens) <= most


def thinned(samples: Sequence[Sample]) -> Sequence[Sample]:
    """At most ``MAX_MOMENTS`` of them, evenly spaced."""
    if len(samples) <= MAX_MOMENTS:
        return samples
    places = np.linspace(0, len(samples) - 1, MAX_MOMENTS).round().astype(int)
    return [samples[place] for place in places]
