"""Whether a plugin was made for this version of the contracts, and the sentences where it was not.

A driver declares a range (`>=1.1,<1.3`). Until contracts 1.2 the forms of 1.0, a bare version or nothing at all, still
work, with a `ContractDeprecation`: a bare version stands for itself and the minor version after it.
"""

from __future__ import annotations

import re
import warnings

from ale.specs import kinds


class ContractDeprecation(FutureWarning):
    """A plugin uses what the next minor version of the contracts will no longer have; the text says what to write."""


def mismatch(declared: str, package: str) -> str | None:
    """Why a plugin that declares this range cannot be used, and what to install; None where it can."""
    if not declared:
        return None
    found = _range(declared)
    if found is None:
        return (
            f"declares api_version {declared!r}, which is no range of versions such as '{current_range()}'; "
            f"ask the makers of {package} for a release that does."
        )
    from packaging.version import Version

    here = Version(kinds.API_VERSION)
    if here in found:
        return None
    newer = any(s.operator in (">=", ">", "==", "~=") and Version(s.version.rstrip(".*")) > here for s in found)
    mend = (
        "install a newer ALE: pip install --upgrade ale-core" if newer
        else f"install a release of {package} made for {here}: pip install --upgrade {package}"
    )  # fmt: skip
    return f"was made for version {declared} of the plugin contracts, this ALE has {here}; {mend}."


def deprecated_form(declared: str) -> str | None:
    """What to write in place of a form of 1.0; None where the declaration is of today."""
    if not declared:
        return f'does not say which contracts it was made for; write api_version = "{current_range()}" in its class'
    if _bare(declared):
        return f'declares the single api_version {declared!r}; write the range "{_range_of(declared)}"'
    return None


def warn_deprecated(plugin: str, what: str, gone_in: str) -> None:
    """Tell the user once that `plugin` does `what`, which stops working in version `gone_in` of the contracts."""
    warnings.warn(f"{plugin} {what}; from contracts {gone_in} on it is refused.", ContractDeprecation, stacklevel=2)


def current_range() -> str:
    """What a plugin made today declares: this minor version and the next."""
    return _range_of(kinds.API_VERSION)


def _bare(declared: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)*", declared.strip()) is not None


def _range_of(version: str) -> str:
    major, _, minor = version.strip().partition(".")
    first = int(minor.partition(".")[0] or 0)
    return f">={major}.{first},<{major}.{first + 2}"


def _range(declared: str):  # type: ignore[no-untyped-def]  # a SpecifierSet, imported only where there is a range to read
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(_range_of(declared) if _bare(declared) else declared)
    except InvalidSpecifier:
        return None
