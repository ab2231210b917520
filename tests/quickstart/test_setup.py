"""scripts/setup on machines that lack something: it ends with a sentence that says what."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def setup_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "scripts" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\ncase "$2" in *exit*) exit 1 ;; *) echo 3.9 ;; esac\n')
    old.chmod(0o755)
    result = subprocess.run(
        ["sh", str(ROOT / "scripts" / "setup")],
        env={**os.environ, "PYTHON": str(old)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "need Python 3.11, 3.12 or 3.13; found on this machine:  3.9" in result.stderr


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("write error: No space left on device (os error 28)", "disk is full"),
        ("tcp connect error: Connection refused (os error 111)", "could not be reached"),
        ("dns error: failed to lookup address information", "could not be reached"),
        ("invalid peer certificate: UnknownIssuer", "SSL_CERT_FILE"),
        ("error: ensurepip is not available", "python3-venv"),
        ("something nobody has seen", "lines above"),
    ],
)
def test_what_a_tool_printed_becomes_a_sentence(
    setup_script: ModuleType, printed: str, said: str
) -> None:
    assert said in setup_script.diagnose(f"error: it failed\n  Caused by: {printed}\n")


def test_a_program_that_fails_ends_setup_with_its_step(
    setup_script: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        setup_script.run("the packages", ["sh", "-c", "echo 'dns error'; exit 2"])
    assert ended.value.code == 1
    output = capfd.readouterr()
    assert "could not be reached" in output.err
    assert "(step: the packages)" in output.err
    assert "dns error" in output.out


def test_the_list_of_installed_packages_is_not_shown(
    setup_script: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    setup_script.run("the packages", ["sh", "-c", "echo ' + numpy==2.4.6'; echo Installed 1"])
    output = capfd.readouterr().out
    assert "numpy" not in output
    assert "Installed 1" in output
