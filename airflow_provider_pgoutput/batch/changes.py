"""The columns of a staged Parquet file. Capture and apply take the names from here.

A *changes* file has row changes of one table in one version of its schema, in the order of the stream. The
table's own columns are named by position: a column name of the source cannot clash with ours, and needs no
quotes.

======================  ==================  =========================================================
column                  Parquet type        meaning
======================  ==================  =========================================================
``commit_lsn``          int64               LSN of the commit record of the transaction
``seq``                 int64               number of the change in its transaction, from 0; only rows
                                            and truncates count
``op``                  string              ``I`` insert, ``U`` update, ``D`` delete, ``T`` truncate
``xid``                 int64               transaction id, unsigned 32 bit
``commit_ts``           timestamp(us, UTC)  commit time
``old_kind``            string, null        ``K`` key values only, ``O`` the whole old row, null: none
``origin``              string, null        name of the server where the transaction was first committed,
                                            null: here
``origin_lsn``          int64, null         its commit LSN there, null: not known
``n0``, ``n1``, ...     by type             new values, by position of the column; null in D and T
``o0``, ``o1``, ...     by type             old values; in a ``K`` tuple only those of key columns count
``u0``, ``u1``, ...     boolean             true: the new value is unchanged TOAST, ``n`` is null
======================  ==================  =========================================================

A file may leave out origin, ``o`` and ``u`` columns that would be null or false in every row. A reader then
gets nulls. A *copy* file has rows of the initial copy, with ``n`` columns only.

``(commit_lsn, seq)`` is a position in the stream, and unique. The LSN of a row is not unique: PostgreSQL
gives all rows of one COPY the same.

A *rejected* file has the text of values that do not fit their column, see ``REJECTED``. A *messages* file has
what ``pg_logical_emit_message`` wrote, see ``MESSAGES``.

Source: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

COMMIT_LSN = "commit_lsn"
SEQ = "seq"
OP = "op"
XID = "xid"
COMMIT_TS = "commit_ts"
OLD_KIND = "old_kind"
ORIGIN = "origin"
ORIGIN_LSN = "origin_lsn"

#: Name and lake type (Iceberg's notation) of the leading columns of every changes file, in order.
LEADING = (
    (COMMIT_LSN, "long"),
    (SEQ, "long"),
    (OP, "string"),
    (XID, "long"),
    (COMMIT_TS, "timestamptz"),
    (OLD_KIND, "string"),
)

#: The same for the columns about the origin. They follow the leading columns, in files that have them.
ORIGINS = (
    (ORIGIN, "string"),
    (ORIGIN_LSN, "long"),
)


#: The names of the pipeline's own columns in target tables begin with this.
OUR_COLUMNS = "_pgoutput_"


def metadata(name: str) -> str:
    """Name of the column of a target table that shows a staged column."""
    return f"{OUR_COLUMNS}{name}"


#: The staged columns behind the metadata columns that a target table can have, by the names of those. All
#: begin with one prefix, so that they do not hide a column of the source.
METADATA = {metadata(name): name for name, _ in LEADING if name != OLD_KIND}
#: Lake types of these metadata columns.
METADATA_COLUMNS = {metadata(name): kind for name, kind in LEADING if name != OLD_KIND}

#: Columns of a history table: from when to when a version was the row, whether it is so now, and the number
#: of the change that made it; see ``apply/rows/history.py``.
VALID_FROM_COLUMN, VALID_TO_COLUMN = metadata("valid_from"), metadata("valid_to")
VALID_FROM_LSN_COLUMN, VALID_TO_LSN_COLUMN = metadata("valid_from_lsn"), metadata("valid_to_lsn")
IS_CURRENT_COLUMN = metadata("is_current")
SEQ_COLUMN = metadata(SEQ)
#: Their lake types.
OF_HISTORY = {
    VALID_FROM_COLUMN: "timestamptz",
    VALID_TO_COLUMN: "timestamptz",
    VALID_FROM_LSN_COLUMN: "long",
    VALID_TO_LSN_COLUMN: "long",
    IS_CURRENT_COLUMN: "boolean",
    SEQ_COLUMN: METADATA_COLUMNS[SEQ_COLUMN],
}

INSERT = "I"
UPDATE = "U"
DELETE = "D"
TRUNCATE = "T"
COPIED = "C"
OLD_KEY = "K"
OLD_ROW = "O"


def new(position: int) -> str:
    """Name of the staged column that holds the new value of the column at ``position``."""
    return f"n{position}"


def old(position: int) -> str:
    """Name of the staged column that holds the old value of the column at ``position``."""
    return f"o{position}"


def unchanged(position: int) -> str:
    """Name of the staged column that says whether the new value is unchanged TOAST."""
    return f"u{position}"


#: Name and lake type of the columns of a rejected file, and of the side table that receives it. In a copied
#: row ``commit_lsn`` and ``seq`` are null. ``key`` is a JSON object with the text of the key columns.
#: ``tuple`` is ``new`` or ``old``.
REJECTED = (
    ("schema_name", "string"),
    ("table_name", "string"),
    ("relation_oid", "long"),
    ("commit_lsn", "long"),
    ("seq", "long"),
    ("op", "string"),
    ("tuple", "string"),
    ("column_name", "string"),
    ("type_name", "string"),
    ("key", "string"),
    ("raw_value", "string"),
)

LSN = "lsn"
PREFIX = "prefix"

#: Name and lake type of the columns of a messages file, and of the table that receives it. ``lsn`` is unique:
#: where the message's record ends in the WAL, as the server sends it. ``seq`` is that of the next
#: change in the transaction. A message that is not transactional has null for ``commit_lsn``, ``seq``,
#: ``xid`` and ``commit_ts``.
MESSAGES = (
    (LSN, "long"),
    (COMMIT_LSN, "long"),
    (SEQ, "long"),
    (XID, "long"),
    (COMMIT_TS, "timestamptz"),
    ("transactional", "boolean"),
    (PREFIX, "string"),
    ("content", "binary"),
)
