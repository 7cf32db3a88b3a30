"""One run over several processes, on Locust's own master and workers.

The master plans, decides levels and phases, scrapes, keeps the run directory and writes the
report; the workers hold the users. ``messages`` is what they say to each other. On the
master, ``fleet`` knows the workers, ``conductor`` leads them through the levels, ``intake``
merges what they ship. On a worker, ``worker`` joins a crew to Locust, ``outbox`` keeps what
is not yet acknowledged, ``clock_map`` knows the master's time.
"""
