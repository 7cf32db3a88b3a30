"""``kvknee nightly``: one night, from the suite to its place in the history.

``plan`` says what is measured and in which order, ``servers`` has the stack, ``load`` runs one
scenario process, ``harvest`` reads its run directory, ``walk`` joins these and survives what
breaks, ``judging`` compares, ``night`` is the whole. ``lock``, ``preflight`` and ``prune`` keep
order around it.
"""
