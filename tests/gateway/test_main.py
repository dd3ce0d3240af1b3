import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gateway import __version__
from gateway.__main__ import COMMANDS, main

ROOT = Path(__file__).parents[2]


def test_help_lists_every_command_and_imports_none() -> None:
    code = (
        "import sys; from gateway.__main__ import main; main(['--help'], standalone_mode=False);"
        "print(sorted({'fastapi', 'pydantic', 'httpx', 'rich', 'sqlalchemy'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(name in run.stdout for name in COMMANDS)
    assert run.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_help_page_exists_under_its_name(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout == f"ace, version {__version__}\n"


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["serv"])
    assert result.exit_code == 2
    assert "serv" in result.stderr


def test_a_failure_of_ours_is_a_message_and_not_a_traceback(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["serve", "--port", "99999", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: setting port")
