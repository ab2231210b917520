"""Random options of a pipeline: of its stage task, of its apply task, of single tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.changes import METADATA_COLUMNS

if TYPE_CHECKING:
    import random

STREAM = (
    "proto_version",
    "streaming",
    "two_phase",
    "binary",
    "messages",
    "message_prefixes",
    "origin",
)
#: Tables that have a column ``id`` at the beginning.
_WITH_ID = ("serial", "whole", "byindex", "deferred", "toast", "generated", "log")
POLICY = ("on_unknown_default", "on_type_change", "on_unsure_column")


@dataclass
class Options:
    """The options of one pipeline. What a way on changes for good is changed here."""

    stage: dict[str, Any]
    #: Fields of ``StreamOptions``.
    stream: dict[str, Any]
    #: Fields of ``SchemaPolicy``.
    policy: dict[str, Any]
    #: Fields of ``ApplyJob``.
    plan: dict[str, Any]
    #: Options of single tables, by their names at the source.
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def advances_early(self) -> bool:
        """Whether the stage task moves the slot."""
        return bool(self.stage.get("advance") == "after_stage")

    def described(self) -> str:
        """All of them in a line."""
        return str({**self.stage, **self.stream, **self.policy, **self.plan, **self.tables})


def drawn(chance: random.Random, version: int, names: list[str]) -> Options:
    """Options that go together.

    :param names: the tables at the beginning, ``schema.table``.
    """
    stage: dict[str, Any] = {
        "transport": chance.choice(("sql", "walsender", "auto")),
        "advance": chance.choice(("after_apply", "after_apply", "after_stage")),
        "on_new_table": chance.choice(("copy", "copy", "copy", "ignore", "fail")),
        "on_recreated_table": chance.choice(("fail", "copy")),
        "copy_connections": chance.choice((1, 2, 4)),
    }
    limit = chance.random()
    if limit < 0.3:
        stage["max_changes"] = chance.choice((5, 60, 400))
    elif limit < 0.4:
        stage["max_bytes"] = chance.choice((2_000, 200_000))
    if chance.random() < 0.3:
        stage["memory_mib"] = 8
    if stage["transport"] != "walsender" and chance.random() < 0.4:
        stage["decode_parallelism"] = chance.choice((1, 3))
        stage["part_bytes"] = chance.choice((5_000, 60_000))
    if chance.random() < 0.15:
        stage["type_options"] = dict(
            chance.sample(
                (
                    ("numeric", "decimal(38,9)"),
                    ("uuid", "uuid"),
                    ("time", "micros"),
                    ("interval", "struct"),
                ),
                2,
            )
        )
    stream: dict[str, Any] = {
        "two_phase": chance.random() < 0.25,
        "binary": chance.random() < 0.4,
        "messages": chance.random() < 0.2,
    }
    streaming = ["off", None, "on"] + ["parallel"] * (version >= 16)
    stream["streaming"] = None if stream["messages"] else chance.choice(streaming)
    policy = {
        "on_unknown_default": chance.choice(("ignore", "default", "copy")),
        "on_type_change": chance.choice(("fail", "copy")),
        "on_unsure_column": chance.choice(("fail", "ignore", "copy")),
    }
    plan: dict[str, Any] = {
        "format_version": chance.choice((2, 2, 3)),
        "write_mode": chance.choice(("merge-on-read", "merge-on-read", "copy-on-write")),
        "tag_retention_days": chance.choice((0, 7)),
        "parallel_tables": chance.choice((1, 4)),
        "keep_retyped_columns": chance.random() < 0.5,
        "drop_columns": chance.random() < 0.4,
        "soft_delete": chance.random() < 0.15,
        "mode": "change_log" if chance.random() < 0.08 else "upsert",
        "on_table_refused": chance.choice(("fail", "set_aside", "set_aside")),
        "on_row_refused": chance.choice(("fail", "quarantine")),
    }
    if chance.random() < 0.3:
        plan["metadata_columns"] = chance.sample(list(METADATA_COLUMNS), 2)
    # As the task group gives it to both tasks.
    stage["on_table_refused"] = plan["on_table_refused"]
    options = Options(stage, stream, policy, plan)
    for name in names:
        if name.partition(".")[2] in _WITH_ID and chance.random() < 0.15:
            options.tables[name] = {
                "partitioned_by": [chance.choice(("bucket(3, id)", "truncate(10, id)"))]
            }
            continue
        if chance.random() < 0.1 or name.endswith(".log"):
            options.tables[name] = {"mode": "change_log"}
        elif chance.random() < 0.06:
            options.tables[name] = {"keep_retyped_columns": True}
    return options
