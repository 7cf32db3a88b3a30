"""The harness's own ``/metrics``: what the clients see while a run goes.

``worker`` counts in the measuring process, ``snapshot`` is what it sends, ``server`` adds up
the snapshots of all workers and answers scrapes in a process of its own.
"""
