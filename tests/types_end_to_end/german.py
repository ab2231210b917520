"""Locales in which amounts of money look different, made for a server whose machine may have none.

The minimal systems that the tests run on have the locale C alone, and a setting ``lc_monetary`` that changes
nothing shows nothing. What is not here: the setting itself (``conftest.py``).
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from quickstart.postgres import EmbeddedPostgres

LOCALE = "de_DE.UTF-8"
#: One whose currency has no smaller unit.
YEN = "ja_JP.UTF-8"
#: What a session with this ``lc_monetary`` shows of the amount 1234.56.
SHOWN = "1.234,56 €"


def make_locale(server: EmbeddedPostgres) -> str | None:
    """Make the locales and start the server again with them.

    :returns: why the server does not have them; None: it does.
    """
    program = shutil.which("localedef")
    if program is None:
        return f"no {LOCALE}: this machine has no localedef"
    folder = server.home / "locales"
    folder.mkdir(exist_ok=True)
    for locale in (LOCALE, YEN):
        made = subprocess.run(
            [program, "-i", locale.removesuffix(".UTF-8"), "-f", "UTF-8", str(folder / locale)],
            check=False,
            capture_output=True,
            text=True,
        )
        if not (folder / locale).is_dir():
            return f"no {locale}: localedef says {made.stderr.strip()[-200:]}"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LOCPATH", str(folder))
        server.restart()
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        for locale in (LOCALE, YEN):
            try:
                session.execute(f"SET lc_monetary = '{locale}'")
            except psycopg.errors.InvalidParameterValue as error:
                return f"no {locale}: {error}"
    return None
