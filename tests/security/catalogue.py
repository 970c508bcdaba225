"""The attacks that are a program alone: what one kind of agent tries, others can try too."""

from __future__ import annotations

from . import test_channels, test_kernel, test_mounts, test_network_none, test_reading, test_resident, test_rights

ATTACKS = [
    attack
    for module in (test_reading, test_channels, test_mounts, test_rights, test_kernel, test_resident, test_network_none)
    for attack in module.ATTACKS
]
