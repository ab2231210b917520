"""Chromium, and a Python that drives it. A test is skipped where one of them cannot be had."""

from __future__ import annotations

import shutil

import pytest

from tests.lakes.programs import Unavailable, python_with


def chromium_and_python() -> tuple[str, str]:
    """The paths of Chromium and of a Python that has playwright."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("There is no Chromium (Debian's package chromium).")
    try:
        python = python_with("browser", "playwright==1.64.0") / "python"
    except Unavailable as error:
        pytest.skip(str(error))
    return chromium, str(python)
