"""What the Iceberg tables of a pipeline get to stay fast and small: a part of ``Plan``.

What is not here: doing it (``apply/maintain.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_pgoutput.errors import ConfigurationError

_DAY_S = 24 * 60 * 60
#: Iceberg refuses less: files of a writer that has not committed yet would be taken for orphans.
_LEAST_ORPHAN_S = _DAY_S


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The steps, and how long what is replaced stays."""

    slot_name: str
    #: Sources, ``schema.table``; empty: every table of the slot and the pipeline's own.
    source_tables: tuple[str, ...] = ()
    #: Join small data files, and apply deletes to those that have many.
    compact: bool = True
    #: Options of Iceberg's ``rewrite_data_files``, over its defaults.
    compact_options: dict[str, str] = field(default_factory=dict)
    #: Seconds that a snapshot stays at least; None: none is expired. Tags and branches stay as they say.
    snapshot_retention_s: int | None = 5 * _DAY_S
    #: Snapshots of main that stay at least.
    keep_snapshots: int = 1
    #: Seconds after which a file that no snapshot names is an orphan; None: none is removed.
    orphan_retention_s: int | None = None

    @classmethod
    def from_body(cls, body: dict[str, Any] | None) -> Maintenance | None:
        """The part out of its JSON form.

        :raises TypeError: when fields are missing or unknown.
        """
        if body is None:
            return None
        return cls(**{**body, "source_tables": tuple(body["source_tables"])})

    def check(self) -> None:
        """Raise ConfigurationError when a value is out of its range."""
        if self.snapshot_retention_s is not None and self.snapshot_retention_s < 0:
            raise ConfigurationError("snapshot_retention is negative.")
        if self.keep_snapshots < 1:
            raise ConfigurationError(
                "keep_snapshots is below 1.",
                advice="a table has at least the snapshot that it shows.",
            )
        if self.orphan_retention_s is not None and self.orphan_retention_s < _LEAST_ORPHAN_S:
            raise ConfigurationError(
                "orphan_retention is shorter than a day, the longest that a writer may take to commit.",
                advice="give a day or more, or None to keep such files.",
            )
