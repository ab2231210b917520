"""Every error that this package raises on purpose, grouped by what the owner of the DAG should do.

PgoutputError
|__ RetryableError              trying again can help                       -> Airflow retries
|   |__ ConnectionNotFound        Airflow has no such connection, or whoever keeps it did not answer
|   |__ SourceUnavailable         the source did not answer or closed the connection
|   |__ SnapshotLost              the snapshot of a copy is gone, or a table was rewritten since
|   |__ SlotBusy                  somebody else reads the slot now
|   |__ SourceLocked              a table of the source is locked, perhaps by a prepared transaction
|   |__ LakeUnavailable           the Iceberg catalog or the staging area did not answer
|   |__ StagingFull               the worker's own disk has no room for an unfinished transaction
|   |__ SparkFailed               Spark or Iceberg failed for a reason that has no class here
|   |__ PublishRefused            the table moved while the batch was prepared: prepare it again
|   |__ CommitStateUnknown        the catalog did not say whether it committed: look, then decide
|   |__ NothingCompared           a verification could compare none of its tables
|__ FatalError                  trying again gives the same                 -> Airflow fails at once
|   |__ ConfigurationError        an argument, a connection or a combination of options is wrong
|   |__ ProtocolError             the bytes break the pgoutput protocol
|   |__ SlotNotFound              the slot does not exist, although a checkpoint says it did
|   |__ WrongSlot                 other database, other plugin, physical, temporary, synced
|   |__ PublicationMissing        the publication does not exist, or did not when a change was made
|   |__ PublicationChanged        a publication was altered in a way that the lake cannot follow
|   |__ MissingPrivilege          the role lacks a right; the message names the GRANT
|   |__ SourceChanged             other system identifier or timeline, or a source behind the lake
|   |__ SourceError               the server refused a statement for a reason with no class here
|   |__ TemporaryFilesFull        the server has no room for the temporary file of an answer
|   |__ NoBinaryForm              a value came in the binary form of a type that is read as text only
|   |__ DecodedTooEarly           the server cannot decode a transaction before its end, with two_phase
|   |__ LakeDenied                catalog or staging area do not take the login, or forbid what was asked
|   |__ BatchRefused              a manifest or staged file is missing, damaged or of another pipeline
|   |__ BatchGap                  the batch starts past the checkpoint: something is missing between
|   |__ TableRefused              the target table is not what the pipeline left there
|   |__ TableRolledBack           the target table is older than the checkpoint says
|   |__ TableDamaged              a file of the target table is missing, or has another size or end
|   |__ LakeDiffers               a verification found rows that lake and source do not share
|   |__ LimitPassed               a check found the WAL, the lake or its proof past a limit of the user's
|   |__ ValueRefused              a value does not fit its column and the policy is ``fail``
|__ CopyAgainError              the stream alone cannot repair this         -> fail; copy the tables again
    |__ SlotLost                  the server removed WAL that the slot needed
    |__ SlotAheadOfCheckpoint     the slot moved past the checkpoint: changes between are gone
    |__ RowMissing                a partial update of a row that the target does not hold

A message says what happened, where (slot, table, column, LSN) and what to do next; it never holds
a row's value or a secret.
"""

from __future__ import annotations

#: Stands between what happened and the advice.
_TO_DO = " What to do: "

#: The page that has a row for each class.
_PAGE = "https://github.com/airflow-provider-pgoutput/airflow-provider-pgoutput/blob/main/docs/reference/errors.md"


class PgoutputError(Exception):
    """Base of all errors that this package raises on purpose.

    :param message: what happened, in one sentence.
    :param slot: the replication slot concerned.
    :param table: the table concerned, as ``schema.table``.
    :param column: the column concerned.
    :param lsn: the position concerned, in text form (``16/B374D848``).
    :param advice: what the reader should do next.
    """

    #: The part of the page that has the row of this class.
    heading = ""

    def __init__(
        self,
        message: str,
        *,
        slot: str | None = None,
        table: str | None = None,
        column: str | None = None,
        lsn: object | None = None,
        advice: str | None = None,
    ) -> None:
        self.message = message
        self.slot = slot
        self.table = table
        self.column = column
        self.lsn = None if lsn is None else str(lsn)
        self.advice = advice
        super().__init__(self._text())

    @property
    def reason(self) -> str:
        """What happened, for a place that names the table itself: with the column, if there is one."""
        return self.message if self.column is None else f"{self.message} (column {self.column})"

    def lines(self) -> tuple[str, ...]:
        """What happened, where, what to do and where more is written, each in a line for the log."""
        parts = (
            (type(self).__name__, self.message),
            ("Where", self._where()),
            ("What to do", self.advice),
            ("More about it", f"{_PAGE}#{self.heading}"),
        )
        return tuple(f"{name}: {text}" for name, text in parts if text)

    def _where(self) -> str:
        known = (
            ("slot", self.slot),
            ("table", self.table),
            ("column", self.column),
            ("LSN", self.lsn),
        )
        return ", ".join(f"{name} {value}" for name, value in known if value is not None)

    def _text(self) -> str:
        text, where = self.message, self._where()
        if where:
            text += f" ({where})"
        if self.advice:
            text += f"{_TO_DO}{self.advice}"
        return text


class RetryableError(PgoutputError):
    """Trying again, unchanged and later, can succeed."""

    heading = "retry-helps"
    #: What to look at when no retry is left.
    where_to_look = "the log of this try"

    def say_no_try_is_left(self) -> None:
        """Give advice that does not wait for a next try."""
        advice = self.advice or ""
        if advice.startswith("nothing;"):
            # Its first sentence is about the next try. What follows is for an error that lasts.
            advice = advice.partition(". ")[2]
        advice = advice or f"look at {self.where_to_look}."
        self.advice = f"{advice} This was the last try: clear the task to try again."
        self.args = (self._text(),)


class ConnectionNotFound(RetryableError):
    """Airflow gave no such connection; it says the same when an API server or a secrets backend is silent."""


class SourceUnavailable(RetryableError):
    """The source did not answer, or it closed the connection."""

    where_to_look = "the server, at host and port of the connection, and at the network in between"


class SnapshotLost(RetryableError):
    """A table cannot be read in its snapshot any more; tables that are sealed stay so."""


class SlotBusy(RetryableError):
    """Another session reads the slot (SQLSTATE 55006)."""


class SourceLocked(RetryableError):
    """A table of the source stayed locked for longer than a run waits (SQLSTATE 55P03)."""


class LakeUnavailable(RetryableError):
    """The catalog or the staging area did not answer, or a file of the lake cannot be read now."""

    where_to_look = "the catalog and the object store, and at the network in between"


class StagingFull(RetryableError):
    """The worker's own disk has no room for a transaction that is not committed yet."""


class SparkFailed(RetryableError):
    """Spark or Iceberg failed for a reason that has no class of its own here."""


class PublishRefused(RetryableError):
    """Main moved since the branch was made; nothing was published and the batch is prepared again."""


class CommitStateUnknown(RetryableError):
    """The catalog did not say whether it committed; the next attempt looks before it writes."""


class NothingCompared(RetryableError):
    """A verification could compare none of its tables, so it proved nothing."""

    where_to_look = "the reasons in pgoutput_proofs"


class FatalError(PgoutputError):
    """Trying again gives the same result: somebody has to act first."""

    heading = "somebody-has-to-act-first"


class ConfigurationError(FatalError):
    """An argument, a connection or a combination of options is wrong."""


class ProtocolError(FatalError):
    """The bytes break the pgoutput protocol; reading them again would give the same bytes."""


class TemporaryFilesFull(FatalError):
    """The server has no room for the temporary file of an answer; the walsender needs none."""


class SlotNotFound(FatalError):
    """The slot does not exist, although a checkpoint says that it did."""


class WrongSlot(FatalError):
    """The slot is of another database or plugin, physical, temporary or synced."""


class PublicationMissing(FatalError):
    """A publication does not exist, or did not yet when a change of the batch was made."""


class PublicationChanged(FatalError):
    """A publication was altered in a way that gives tables other names in the stream."""


class MissingPrivilege(FatalError):
    """The role lacks a right; the message names the GRANT that helps."""


class SourceChanged(FatalError):
    """The source is another system, on another timeline, or behind what the lake holds."""


class SourceError(FatalError):
    """The server refused a statement for a reason that has no class of its own here."""


class DecodedTooEarly(FatalError):
    """The server cannot decode a transaction before its end, which streaming and two_phase ask of it."""


class NoBinaryForm(FatalError):
    """A column is of a type that is not read in its binary form; the text form can be asked for."""


class LakeDenied(FatalError):
    """The Iceberg catalog or the staging area does not take the login, or forbids what was asked of it."""


class BatchRefused(FatalError):
    """A manifest or a staged file is missing, damaged, too new, or of another pipeline."""


class BatchGap(FatalError):
    """The batch starts past the checkpoint: a batch between them was never applied."""


class TableRefused(FatalError):
    """The target table is not what the pipeline left there, and it was not touched."""


class TableRolledBack(FatalError):
    """The target table's applied LSN is older than the checkpoint says."""


class TableDamaged(FatalError):
    """A file of the target table is missing, has another size, or is no Parquet file that can be read.

    Or a change log has entries more than once.
    """

    @classmethod
    def of_file(cls, path: str, what: str, table: str) -> TableDamaged:
        """The error for one file.

        :param path: only its last part is named. Folders may have values of partitions in their names.
        :param what: what is wrong with the file, the rest of a sentence: ``is missing``.
        :param table: the target, ``namespace.table``.
        """
        return cls(
            f"The file {path.rpartition('/')[2]} of the table {what}.",
            table=table,
            advice="put the file back as it was, for example from an older version of the object. Or copy the"
            " table again (copy_tables), a change log or a history into a new target. With soft_delete or"
            " columns of your own, drop the table of the lake before the copy.",
        )


class LakeDiffers(FatalError):
    """A verification compared lake and source at one LSN, and they are not equal."""


class LimitPassed(FatalError):
    """A check of the pipeline's health found something past a limit that the user set."""


class ValueRefused(FatalError):
    """A value cannot be held by its column, and the policy for its type is ``fail``."""


class CopyAgainError(PgoutputError):
    """The stream alone cannot repair this: the tables concerned have to be copied again."""

    heading = "the-tables-have-to-be-copied-again"


class SlotLost(CopyAgainError):
    """The server removed WAL that the slot still needed (``wal_status`` is ``lost``)."""


class SlotAheadOfCheckpoint(CopyAgainError):
    """The slot's confirmed position is past the checkpoint: the changes between them are gone."""


class RowMissing(CopyAgainError):
    """An update without all values concerns a row that the target table does not hold."""


def error_named(error: str, message: str) -> PgoutputError | None:
    """Make an error that another process reported, in its own class; None: it is not one of ours.

    :param error: name of its class. It is looked up among ours only.
    :param message: the error's whole text, with its advice.
    """
    known = {each.__name__: each for each in _tree(PgoutputError)}
    if error not in known:
        return None
    happened, _, advice = message.partition(_TO_DO)
    return known[error](happened, advice=advice or None)


def _tree(base: type[PgoutputError]) -> list[type[PgoutputError]]:
    return [base, *(leaf for each in base.__subclasses__() for leaf in _tree(each))]
