"""The three dashboards: ``run``, ``capacity`` and ``nightly``."""
