"""The models that kvknee makes itself: ``python -m servers.models tiny|smollm2 FOLDER``."""
