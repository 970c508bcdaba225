"""Keeps a run's sandboxes between episodes: a pool in front of each provider (`pool.py`), its slots and waiting
requests (`slots.py`), leased sandboxes (`lease.py`), and statistics of times (`times.py`)."""
