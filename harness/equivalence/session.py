"""One comparison from its settings to its result: the same prompts through each server in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from harness.equivalence.answers import Answer
from harness.equivalence.ask import ask_all, request_body
from harness.equivalence.compare import Comparison, compare_answers, tie_gap_of
from harness.equivalence.settings import EquivalenceSettings
from harness.errors import UsageError
from harness.load.launched import complete, launched_as
from harness.load.preflight import usable_tokens
from harness.load.server_facts import ServerProbe
from harness.manifest import BackendInfo
from harness.plan.prompts import MIN_ALPHABET, TokenPrompts
from harness.stack.state import LaunchedBackend, home_folder, running_backends


@dataclass(frozen=True)
class Result:
    """All comparisons with the first backend."""

    backends: tuple[BackendInfo, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def agrees(self) -> bool:
        """Whether nothing but ties sets any server apart from the reference."""
        return all(comparison.agrees for comparison in self.comparisons)


def run_equivalence(
    settings: EquivalenceSettings, say: Callable[[str], None] = lambda _: None
) -> Result:
    """Ask every server and compare; raises UsageError for what cannot be compared."""
    infos, alphabet = _described(settings)
    prompts = make_prompts(settings, alphabet)
    answers: list[list[Answer]] = []
    for info, address in zip(infos, settings.backends, strict=True):
        say(f"{info.name}: {len(prompts)} prompts, {settings.neighbours} at a time")
        headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        bodies = [request_body(info.model, p, settings.output_tokens) for p in prompts]
        with (
            ServerProbe(address, settings.api_key) as probe,
            httpx.Client(headers=headers, timeout=settings.timeout_s, trust_env=False) as client,
        ):
            found = ask_all(
                probe,
                client,
                bodies,
                settings.neighbours,
                settings.timeout_s,
                settings.api_key,
            )
            answers.append(found)
    return Result(tuple(infos), compare_all(settings, infos, prompts, answers))


def make_prompts(
    settings: EquivalenceSettings, alphabet: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Seeded prompts, the lengths taken in turn, so that neighbours differ in length.

    They depend on the seed alone: run again, the same prompts are asked.
    """
    makers = [TokenPrompts(alphabet, length, settings.seed, 0) for length in settings.lengths]
    return tuple(
        maker.prompt(number * len(makers) + place)
        for number in range(settings.prompts)
        for place, maker in enumerate(makers)
    )


def compare_all(
    settings: EquivalenceSettings,
    infos: Sequence[BackendInfo],
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Answer]],
) -> tuple[Comparison, ...]:
    """The first server against each other one."""
    found = []
    for place in range(1, len(infos)):
        pair = (infos[0], infos[place])
        gap = settings.tie_gap
        if gap is None:
            gap = tie_gap_of([info.dtype for info in pair])
        results = tuple(
            compare_answers(number, len(prompt), a, b, gap)
            for number, (prompt, a, b) in enumerate(
                zip(prompts, answers[0], answers[place], strict=True)
            )
        )
        found.append(Comparison(pair[0].name, pair[1].name, gap, results))
    return tuple(found)


def _described(settings: EquivalenceSettings) -> tuple[list[BackendInfo], tuple[int, ...]]:
    """Each server as it describes itself, and the token ids that all of them take."""
    launched = _launched()
    infos: list[BackendInfo] = []
    alphabet: set[int] | None = None
    for address in settings.backends:
        with ServerProbe(address, settings.api_key) as probe:
            info = probe.describe(settings.model).info
            longest = info.max_model_len
            if longest is not None and settings.longest > longest:
                raise probe.fail(
                    f"holds {longest} tokens per request, fewer than {settings.longest}",
                    "lower --prompt-tokens or --output-tokens",
                )
            own = set(usable_tokens(probe, info.model))
            alphabet = own if alphabet is None else alphabet & own
            if len(alphabet) < MIN_ALPHABET:
                raise probe.fail(
                    "shares too few tokens with the first server", "compare servers of one model"
                )
        launch = launched_as(info, launched)
        infos.append(info if launch is None else complete(info, launch))
    return infos, tuple(sorted(alphabet or ()))


def _launched() -> tuple[LaunchedBackend, ...]:
    """The servers of this machine's stack; none where its state cannot be read."""
    try:
        return running_backends(home_folder())
    except UsageError:
        # without it only the dtype of a server that states none is unknown
        return ()
