"""`ale config diff`: what two run files do differently."""

from __future__ import annotations

from pathlib import Path

from support.command_line import ale

MINIMAL = "tasks: bash\nengine: {use: scripted, answers: [x]}\ntrainer: null\n"


def test_diff_counts_defaults_in(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MINIMAL)
    (tmp_path / "b.yaml").write_text(MINIMAL + "sandbox: {use: local, isolation: auto}\nseed: 1\n")
    (tmp_path / "c.yaml").write_text(MINIMAL + "sandbox: {use: local, isolation: none}\nseed: 2\n")
    assert (ale("config", "diff", tmp_path / "a.yaml", tmp_path / "b.yaml").stdout) == ""
    done = ale("config", "diff", tmp_path / "a.yaml", tmp_path / "c.yaml")
    assert (done.returncode, done.stdout) == (1, 'seed: 1 -> 2\nsandbox.isolation: "auto" -> "none"\n')
    wrong = ale("config", "diff", tmp_path / "a.yaml", tmp_path / "no.yaml")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: There is no run file")
