"""`ale config describe`: every key of a run file, of a section or of a plugin, with type, default and meaning."""

from __future__ import annotations

from ale.cli.plugins_command import print_table
from ale.config.keys import describe_keys
from ale.errors import ConfigError
from ale.registry.drivers import load_driver_class
from ale.registry.installed import list_plugins
from ale.registry.validation import nearest_hint
from ale.specs.kinds import ALL_KINDS, HOOKS, plugin_noun
from ale_train.config.evaluation import EvaluationKeys, EvaluationSet
from ale_train.config.run import RunConfig

SECTIONS_OF_KINDS = {HOOKS: "observers", "tool_format": "session.tool_format"}
"""Where a run file names plugins of a kind, if the section is not called like the kind."""
HEAD = ("KEY", "TYPE", "DEFAULT", "MEANING")


def describe(word: str | None, name: str | None) -> None:
    """Print the keys of a run file; of a section or a key (`word`); or of the plugin `name` of the kind `word`. Raises
    `ConfigError`."""
    rows = [*describe_keys(RunConfig), *_keys_of_sets()]
    if word is None:
        print_table([HEAD, *rows])
        return
    kind = next((kind for kind, section in SECTIONS_OF_KINDS.items() if section == word), word)
    section = SECTIONS_OF_KINDS.get(kind, word) if name is None or kind in ALL_KINDS else f"{word}.{name}"
    own = [row for row in rows if row[0] == section or row[0].startswith(f"{section}.")]
    if kind in ALL_KINDS and name is not None:
        beside = [row for row in own if row[0] != section]  # such as tasks.overlong
        settings = [*describe_keys(load_driver_class(kind, name, kind).Config), *beside]
        if settings:
            print_table([HEAD, *settings])
        else:
            print("It has no settings.")
        return
    if not own:
        known = [*dict.fromkeys(row[0].partition(".")[0] for row in rows)]
        raise ConfigError(
            f"A run file has no section or key '{section}'.{nearest_hint(section, [*known, *ALL_KINDS])} It has: "
            f"{', '.join(known)}."
        )
    print_table([HEAD, *own])
    if kind in ALL_KINDS:
        _print_plugins(kind)


def _keys_of_sets() -> list[tuple[str, ...]]:
    """Return the keys of a named evaluation set, whose defaults are the keys of `eval`."""
    shared = EvaluationKeys.model_fields
    return [
        (key, kind, f"eval.{of}" if (of := key.rpartition(".")[2]) in shared else default, meaning)
        for key, kind, default, meaning in describe_keys(EvaluationSet, "eval.sets.NAME.")
    ]


def _print_plugins(kind: str) -> None:
    """Print which plugins a section may name."""
    noun, found = plugin_noun(kind), list_plugins(kind)
    if not found:
        print(f"\nNo {noun} plugin is installed.")
        return
    print(f"\nInstalled; `ale config describe {kind} NAME` lists the keys of one:")
    print_table([(noun.upper(), "PACKAGE", "MEANING"), *((i.name, i.package, i.summary) for i in found)])
