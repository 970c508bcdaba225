"""Fields of a run file whose section an installed package defines (`ale.specs.package_sections`).

A field has a type that says so, `Annotated[StageSection | None, PackageField("sft", StageSection, "ale-supervised")]`.
If no installed package defines the section, a run file that has it is refused with a sentence that names the usual
package, and a run file without it works."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from ale.errors import ConfigError, PluginError
from ale.registry.search_path import path_state, read_entries

GROUP = "ale.sections"


@dataclass(frozen=True)
class PackageField:
    """It marks the field at `path` of a run file, which holds null or a section derived from `contract`.

    Outside a field, it finds what a package defines for another place of the run file, such as `tasks.mix`."""

    path: str
    contract: type
    usual_package: str

    def find_installed(self) -> Any:
        """The model that a package defines; None if none does. Raises `PluginError` if it is broken."""
        found = [entry for entry in read_entries(GROUP, path_state()) if entry.name == self.path]
        if not found:
            return None
        if len(found) > 1:
            targets = " and ".join(sorted(entry.value for entry in found))
            raise PluginError(f"{self.path}: {targets} both bring this section; uninstall the package of one.")
        try:
            model = found[0].load()
        except Exception as error:
            raise PluginError(f"{self.path}: {found[0].value} cannot be imported: {error}.") from error
        if not (isinstance(model, type) and issubclass(model, self.contract)):
            contract = f"{self.contract.__module__}.{self.contract.__name__}"
            raise PluginError(f"{self.path}: {found[0].value} must be a class made from {contract}.")
        return model

    def require(self) -> Any:
        """The model, for a run that needs it. Raises `ConfigError` if no package defines it."""
        model = self.find_installed()
        if model is None:
            raise ConfigError(f"{self.path}: {self._not_installed()}.")
        return model

    def default(self) -> Any:
        """The section with its defaults, for run files without it; None if no installed package defines it."""
        model = self.find_installed()
        return None if model is None else model()

    def read(self, value: Any) -> Any:
        """Return the section as the installed model reads it. Raises `ValueError` if no package defines it."""
        if value is None or isinstance(value, self.contract):
            return value
        model = self.find_installed()
        if model is None:
            raise ValueError(f"{self._not_installed()}, or leave it out")
        return model.model_validate(value)

    def _not_installed(self) -> str:
        return f"no installed package brings this; `pip install {self.usual_package}` does"

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Read the section by `read`, so that packages are searched only when a run file has it."""
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> Any:
        """Return the schema of the installed model, or null."""
        model = self.find_installed()
        forms = [] if model is None else [handler(model.__pydantic_core_schema__)]
        return {"anyOf": [*forms, {"type": "null"}]}


def installed_model(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model that a package defines for a field, if the field is marked and such a package works."""
    with suppress(PluginError):
        return next((mark.find_installed() for mark in field.metadata if isinstance(mark, PackageField)), None)
    return None
