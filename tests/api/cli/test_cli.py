from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from api.cli import SUBCOMMANDS, main
from tests.api.cli.conftest import ROOT, environment


def test_help_lists_every_command_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("serve", "run", "jobs", "api", "worker", "tasks"):
        assert [line for line in lines if line.split()[:1] == [name]], name


def test_without_arguments_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "usage: slotstream COMMAND" in capsys.readouterr().out


def test_it_knows_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("slotstream 0.")


@pytest.mark.parametrize("name", ["rnu", "--models", ""])
def test_an_unknown_command_is_one_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "there is no command" in said.err


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS))
def test_every_command_explains_its_options(name: str, tmp_path: Path) -> None:
    (tmp_path / "api").mkdir()  # a user's folder of that name is not our package
    (tmp_path / "api" / "__init__.py").write_text("raise SystemExit('wrong package')")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "api.cli", name, "--help"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=45,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("submit" if name == "jobs" else "--redis-url") in done.stdout


def test_serve_wants_a_model(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLOTSTREAM_MODEL", raising=False)
    monkeypatch.chdir(ROOT / "tests")
    assert main(["serve"]) == 2
    sentence = "which model? Name a GGUF file with -m FILE, a repository with -hf, or try -m demo"
    assert capsys.readouterr().err == f"slotstream serve: {sentence}\n"
