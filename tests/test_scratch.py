"""Scratch folders: private, and none of a dead process stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.scratch import ScratchFolder

if TYPE_CHECKING:
    from pathlib import Path

_MAKE_ONE_AND_WAIT = """
import sys
from airflow_provider_pgoutput.scratch import ScratchFolder
folder = ScratchFolder("spill")
(folder.path / "0").write_bytes(b"rows")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_what_a_killed_process_left_goes_with_the_next_folder(temporary: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _MAKE_ONE_AND_WAIT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        path = other.stdout.readline().strip()
        mine = ScratchFolder("spill")
        assert sorted(map(str, temporary.iterdir())) == sorted([path, str(mine.path)])
        other.send_signal(signal.SIGKILL)
        other.wait()
    mine.remove()
    again = ScratchFolder("spill")
    assert list(temporary.iterdir()) == [again.path]
    again.remove()
    assert not list(temporary.iterdir())


def test_folders_of_the_same_process_do_not_harm_each_other(temporary: Path) -> None:
    first, second = ScratchFolder("spill"), ScratchFolder("spill")
    assert first.path.exists()
    assert first.path.stat().st_mode & 0o077 == 0
    first.remove()
    second.remove()
    assert not list(temporary.iterdir())
    assert not [each for each in os.listdir("/proc/self/fd") if str(temporary) in _target(each)]


def _target(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""
