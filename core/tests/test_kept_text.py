"""Texts that observers keep in a run folder."""

from __future__ import annotations

from pathlib import Path

from ale.store.kept_text import KeptText


def test_a_run_that_goes_on_finds_the_texts_of_its_observers_in_their_order(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for texts in (["", ""], ["of the first", "of the second"]):
        one, two = KeptText(folder, "id"), KeptText(folder, "id")
        assert [one.read(), two.read()] == texts
        one.write("of the first")
        two.write("of the second")
        one.close()
        two.close()
    assert sorted(path.name for path in folder.iterdir()) == ["id", "id.2"]
