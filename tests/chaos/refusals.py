"""Which refusals are expected, what may cause each, and the ways on that its message names.

A run fails in three cases: a refusal is not in this list; the program did nothing that may cause it; or its
way on was taken, nothing else happened, and the refusal came back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.chaos.trouble import ROW_DELETED

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from tests.chaos.tasks import Refusal

COPY = "copy the table"
RETRY = "try again"
TARGET = "keep its target"
OTHER_TARGET = "another target"
NEW_COLUMN = "keep the old values in a column"
TYPE_CHANGES = "on_type_change='copy'"
UNSURE = "on_unsure_column"
OLDER_ROWS = "on_unknown_default='copy'"
RECREATED = "on_recreated_table='copy'"
ON_NEW_TABLE = "on_new_table='copy'"
NEW_SLOT = "a new slot without two_phase"
NEW_SLOT_AS_TEXT = "a new slot without binary"
LEAVE_OUT = "copy_tables without what is not published"
COPY_ALL = "on_slot_lost='copy'"
GIVE_UP = "give up the sealed batch and copy all tables"
KEY_COLUMNS = "key_columns"
NO_PARTITIONS = "a target without partitioned_by"
IDENTITIES = "an identity for every partition, and a copy"
SAY_AGAIN = "masks and filters with the names of now, or a copy"
SAID_BEFORE = "masks and filters as they were said before"
USE_HASH = "the mask hash, and a copy"
NO_FILTER = "no filter, and a copy"
OTHER_NAME = "another name of the column in the lake, and a copy"
KEEP_NAME = "the name that the column has in the lake"
OTHER_MODE = "mode upsert in another target"


@dataclass(frozen=True)
class Expected:
    """A kind of refusal."""

    kind: str
    #: What its message has to say.
    words: str
    #: Operations of the program of which one at least must have happened; empty: any program may cause it.
    causes: tuple[str, ...]
    #: The ways on, each with what its message has to say to be one; the first that it names is taken, or by
    #: chance another.
    ways: tuple[tuple[str, str], ...]


#: These are followed by ``on_the_way.py``.
ON_THE_WAY = frozenset({SAY_AGAIN, SAID_BEFORE, USE_HASH, NO_FILTER})

CRASH = "crash of the server"
KILL = "kill"
DROPPED_SLOT = "dropped slot"
_COPYING = (COPY, r"copy_tables|copy it again|copy the table again|copied again")
_SHAPES = (
    "add column",
    "drop column",
    "rename column",
    "swap columns",
    "replace column",
    "retype",
    "replace enum",
)
_GONE = (
    "rename table",
    "move table",
    "rename schema",
    "drop table",
    "recreate table",
    "create table",
)
_IDENTITIES = ("change key", "change identity", "change leaf identity", "rename key")
_MEMBERS = ("add member", "drop member", "replace member")

EXPECTED = (
    # The stage task does not stage tables that it set aside. So neither a replay nor a copy brings their
    # changes into a log.
    Expected(
        "TableRefused",
        "The change log lacks batches, and a copy does not bring them",
        (),
        ((OTHER_TARGET, "set its target to a new name"),),
    ),
    Expected("Ended", "signal 6", (CRASH,), ((RETRY, ""),)),
    Expected(
        "TableRefused",
        "renamed at the source, and other tables share the column",
        (*_SHAPES, "rename key", "recreate table"),
        ((KEEP_NAME, "give it the name that it has in the lake"),),
    ),
    Expected(
        "TableRefused",
        "other tables share the column",
        (*_SHAPES, "recreate table", "create table"),
        ((OTHER_NAME, "another name in the lake"),),
    ),
    Expected(
        "TableRefused",
        "renamed at the source",
        _GONE,
        ((TARGET, "target option"), _COPYING),
    ),
    Expected(
        "TableRefused",
        r"dropped and created again|another made under its name",
        _GONE,
        ((RECREATED, "on_recreated_table"), _COPYING, (OTHER_TARGET, "name another target")),
    ),
    Expected(
        "TableRefused",
        "is also that of",
        _GONE,
        ((OTHER_TARGET, "name another target"),),
    ),
    Expected(
        "TableRefused",
        "published, and the lake does not have it",
        ("add member", *_GONE, "detach", "attach", "replace leaf", "publication of all tables"),
        (_COPYING, (ON_NEW_TABLE, "on_new_table")),
    ),
    Expected(
        "TableRefused",
        "dropped and another took its place",
        ("drop column", "replace column", "add column", "rename column", "swap columns"),
        (_COPYING, (UNSURE, "on_unsure_column")),
    ),
    Expected(
        "TableRefused",
        "which Iceberg cannot",
        (*_SHAPES, "recreate table", "create table"),
        (_COPYING, (NEW_COLUMN, "keep_retyped_columns"), (TYPE_CHANGES, "on_type_change='copy'")),
    ),
    Expected(
        "TableRefused",
        "An update (or delete )?(came|does not say)",
        ("partitions with identities of their own", "change identity", "attach", "change key"),
        (_COPYING, (IDENTITIES, r"REPLICA IDENTITY (DEFAULT|FULL)")),
    ),
    Expected(
        "TableRefused",
        "brought a row into the row filter",
        ("add member", "replace member"),
        (_COPYING,),
    ),
    Expected("TableRefused", "while the table had no columns", ("drop column",), (_COPYING,)),
    Expected(
        "TableRefused",
        "REPLICA IDENTITY FULL",
        (
            "change key",
            "change identity",
            "change leaf identity",
            "recreate table",
            "attach",
            "detach",
        ),
        (_COPYING, (OLDER_ROWS, "on_unknown_default")),
    ),
    Expected(
        "TableRefused",
        "what older rows hold in",
        (
            "add column",
            "retype",
            "rewrite",
            "replace column",
            "convert",
            "change key",
            "change identity",
        ),
        (_COPYING,),
    ),
    Expected(
        "TableRefused",
        "it changed in all rows",
        ("rename label", "change attributes", "drop expression"),
        (_COPYING, (TYPE_CHANGES, "on_type_change='copy'")),
    ),
    Expected("TableRefused", "written in mode", _GONE, ((OTHER_TARGET, "name another target"),)),
    Expected(
        "TableRefused",
        "leaves out an unchanged value",
        ("retype", "replace enum", "replace column"),
        (_COPYING,),
    ),
    Expected(
        "BatchRefused",
        "rows nothing identifies",
        ("change identity", "change key", "change leaf identity", "drop column"),
        (_COPYING,),
    ),
    Expected(
        "RowMissing",
        "",
        (
            *("change operations", "rewrite", "attach", "detach", "replace member", "convert"),
            *("change identity", "change key", "change leaf identity", "retype", "drop expression"),
            *("add column", "replace leaf", "truncate leaf", ROW_DELETED),
        ),
        (_COPYING,),
    ),
    Expected("DecodedTooEarly", "", _SHAPES + _GONE, ((NEW_SLOT, "new slot"),)),
    Expected("NoBinaryForm", "", (), ((NEW_SLOT_AS_TEXT, "new slot"),)),
    Expected(
        "ConfigurationError",
        "copy_tables names tables that are not published",
        ("drop member", *_GONE, "attach", "detach", "replace leaf"),
        ((LEAVE_OUT, ""),),
    ),
    Expected(
        "ConfigurationError",
        "does not make such a table",
        ("rename key", "change key", *_SHAPES, *_GONE),
        ((NO_PARTITIONS, "partitioned_by"),),
    ),
    # A replay names the reason in its own error.
    Expected(
        "TableRefused",
        "Still set aside: .*does not make such a table",
        ("rename key", "change key", *_SHAPES, *_GONE),
        ((NO_PARTITIONS, "partitioned_by"),),
    ),
    Expected(
        "ConfigurationError",
        "columns names no published column|filters names no published table",
        (*_SHAPES, *_GONE, *_IDENTITIES, *_MEMBERS, "detach", "attach", "replace leaf"),
        ((SAY_AGAIN, "its new name|as the publication sends it"),),
    ),
    Expected(
        "ConfigurationError",
        "is (plain|masked .*) in the lake, and columns",
        (*_SHAPES, *_GONE, *_IDENTITIES, *_MEMBERS),
        ((SAY_AGAIN, "copy_tables|name it in columns"),),
    ),
    Expected(
        "ConfigurationError",
        "renamed while the run read its table|renamed, or got another type, while the run read",
        (*_SHAPES, "rename key"),
        ((SAY_AGAIN, "nothing was staged"),),
    ),
    Expected(
        "ConfigurationError",
        "An earlier run sealed the next batch",
        (*_SHAPES, *_GONE, *_IDENTITIES, *_MEMBERS),
        ((SAID_BEFORE, "apply that batch with the (masks|filter) that it has"),),
    ),
    Expected(
        "ConfigurationError",
        "the table was made again without",
        _GONE,
        (_COPYING,),
    ),
    Expected(
        "ConfigurationError",
        "does not go with a column of the key or of the replica identity",
        (*_IDENTITIES, *_GONE, "attach", "detach", "replace leaf"),
        ((USE_HASH, "use 'hash'"),),
    ),
    Expected(
        "ConfigurationError",
        "filtered in another way than filters says now|filters has another condition for it",
        (*_SHAPES, *_GONE, *_IDENTITIES, *_MEMBERS, "convert"),
        ((SAY_AGAIN, "copy_tables"),),
    ),
    Expected(
        "ConfigurationError",
        "The filter cannot be followed",
        (*_SHAPES, *_GONE),
        ((NO_FILTER, r"change filters\["),),
    ),
    Expected(
        "ConfigurationError",
        "The filter has a column that is not in the replica identity",
        (*_IDENTITIES, *_GONE, "attach", "detach", "replace leaf"),
        ((IDENTITIES, "REPLICA IDENTITY FULL"), (NO_FILTER, "")),
    ),
    Expected(
        "TableRefused",
        "It is not known which changes of the table pass its filter. The table is not published",
        (*_GONE, *_MEMBERS, "detach", "attach", "replace leaf"),
        ((NO_FILTER, "take it out of filters"),),
    ),
    Expected(
        "TableRefused",
        "It is not known which changes of the table pass its filter|left out a large value of a column of"
        " the filter|had their names in another order|neither the catalog nor the lake knows",
        (*_SHAPES, *_GONE, *_IDENTITIES, *_MEMBERS, "convert", "attach", "detach", "replace leaf"),
        (_COPYING,),
    ),
    Expected(
        "TableRefused",
        "The table has no key, so nothing tells which version follows which",
        (),
        ((OTHER_MODE, "another mode"),),
    ),
    Expected("PublicationChanged", "Rows of partitions came", ("attach",), (_COPYING,)),
    Expected("SlotNotFound", "", (DROPPED_SLOT,), ((COPY_ALL, "on_slot_lost"),)),
    Expected("SlotAheadOfCheckpoint", "", ("way on",), ((GIVE_UP, ""),)),
    Expected("ValueRefused", "key", ("change key", "change identity", "odd values"), (_COPYING,)),
)

#: Another task, a crash or a statement of the program stood in the way for a moment.
RETRYABLE = Expected("RetryableError", "", (), ((RETRY, ""),))


def column_of(refusal: Refusal) -> str | None:
    """The column of a refusal; None: it names none. Of a table that stays aside it is in the message."""
    found = re.search(r"\(column (.+?)\)", refusal.message)
    return found[1] if refusal.column is None and found else refusal.column


def expected(refusal: Refusal, done: Counter[str] | Mapping[str, int]) -> Expected | None:
    """The kind that a refusal is of; None: it is not expected of this program."""
    if refusal.kind == "SparkFailed" and not done.get(KILL):
        return None
    if "RetryableError" in refusal.bases:
        return RETRYABLE
    for each in EXPECTED:
        if each.kind != refusal.kind or not re.search(each.words, refusal.message):
            continue
        if each.causes and not any(done.get(cause) for cause in each.causes):
            continue
        return each
    return None


def ways_named(kind: Expected, refusal: Refusal) -> list[str]:
    """The ways on that the message names, in our order."""
    return [way for way, words in kind.ways if re.search(words, refusal.message)]
