"""What an apply leaves to Spark: reading and writing rows. Every decision is made on the other side.

What is not here: metadata of tables, which goes through Iceberg's Java API (``iceberg.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.checkpoint_rows import CheckpointRows, SparkCheckpointRows
from airflow_provider_pgoutput.apply.prepare import TablePreparation

if TYPE_CHECKING:
    from airflow_provider_pgoutput.apply.branching import Preparation


@dataclass(frozen=True, slots=True)
class RowWork:
    """Who does it."""

    preparation: type[Preparation]
    checkpoint: CheckpointRows


SPARK = RowWork(TablePreparation, SparkCheckpointRows())
