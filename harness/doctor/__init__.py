"""``kvknee doctor``: what would stop a user, found before the user meets it.

``gather`` reads the machine through ``probes``, each read bounded in time, into plain
``facts``; every ``check_*`` module is pure: from what was asked and the facts to rows.
"""
