"""What the tests of the kit share."""

from __future__ import annotations

from support.fake_packages import install as install
