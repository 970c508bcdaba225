"""Checks whether a plugin was made for this version of the contracts, and explains it if not.

A driver declares a range (`>=1.0,<1.2`): a minor version only adds, so a plugin made for one works with the next too.
"""

from __future__ import annotations

from ale.specs import kinds


def describe_mismatch(declared: str, package: str) -> str | None:
    """Return why a plugin that declares this range cannot be used, and what to do; None if it can be used."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import Version

    if not declared.strip():
        return f'does not say which contracts it was made for; write api_version = "{current_range()}" in its class.'
    try:
        found = SpecifierSet(declared)
    except InvalidSpecifier:
        return (
            f"declares api_version {declared!r}, which is no range of versions such as '{current_range()}'; "
            f"ask the makers of {package} for a release that does."
        )
    here = Version(kinds.API_VERSION)
    if here in found:
        return None
    newer = any(s.operator in (">=", ">", "==", "~=") and Version(s.version.rstrip(".*")) > here for s in found)
    mend = (
        "install a newer ALE: pip install --upgrade ale-core"
        if newer
        else f"install a release of {package} made for {here}: pip install --upgrade {package}"
    )
    return f"was made for version {declared} of the plugin contracts, this ALE has {here}; {mend}."


def current_range() -> str:
    """Return the range that a plugin made today declares: this minor version and the next."""
    major, _, minor = kinds.API_VERSION.partition(".")
    return f">={major}.{minor},<{major}.{int(minor) + 2}"
