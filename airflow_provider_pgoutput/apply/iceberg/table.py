"""One Iceberg table through its Java API: markers, branches, and the one commit that publishes.

Only metadata passes here. Spark reads and writes the rows.

Source: https://iceberg.apache.org/docs/latest/branching/ and /javadoc/latest/ (ManageSnapshots).
"""

from __future__ import annotations

import dataclasses
import logging
import re
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.causes import sure_cause
from airflow_provider_pgoutput.apply.iceberg.failures import commit_failure
from airflow_provider_pgoutput.apply.iceberg.jvm import (
    JAVA_ERRORS,
    activate,
    class_named,
    elements,
    entries,
    exceptions,
    java_class,
    schema_as_json,
    texts,
)
from airflow_provider_pgoutput.apply.iceberg.publication import MAIN, Publication
from airflow_provider_pgoutput.apply.iceberg.shared_state import shared_state
from airflow_provider_pgoutput.apply.iceberg.slice_files import SliceFiles
from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.applied import Snapshot, batch_of, find_applied
from airflow_provider_pgoutput.errors import (
    LakeUnavailable,
    PgoutputError,
    PublishRefused,
    TableDamaged,
    TableRefused,
)
from airflow_provider_pgoutput.slices import SUMMARY_SLICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.iceberg.sql import TableName
    from airflow_provider_pgoutput.batch.applied import Applied, Marker
    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.slices import Slice

log = logging.getLogger(__name__)

#: Table property by field id: what older rows lack in a new column, see ``schema/evolve.py``.
FILL_PREFIX = "pgoutput.fill."
#: The first format version that has row-level deletes, deletion vectors, defaults of columns. https://iceberg.apache.org/spec/#format-versioning
_FIRST_WITH_ROW_DELETES = 2
_FIRST_WITH_DELETION_VECTORS = _FIRST_WITH_DEFAULTS = 3
#: What Iceberg throws if the store does not have a file, and how the path of a metadata file ends.
_FILE_NOT_FOUND = "org.apache.iceberg.exceptions.NotFoundException"
_METADATA_FILE = re.compile(r"\S+\.metadata\.json\b")


class IcebergTable:
    """An Iceberg table, seen through one Spark session.

    :param java: an ``org.apache.iceberg.Table``.
    """

    def __init__(self, spark: SparkSession, name: TableName, java: Any) -> None:
        self.name = name
        self.java = java
        self._spark = spark
        self._jvm: Any = spark._jvm
        self.slice_files = SliceFiles(self._jvm, () if name.slice is None else (name.slice,))

    @classmethod
    def load(cls, spark: SparkSession, name: TableName) -> IcebergTable | None:
        """Load a table as the catalog has it now; None: there is none.

        :raises TableRefused: something else than an Iceberg table has the name.
        :raises ConfigurationError: a jar is missing, or there is no such bucket.
        :raises LakeDenied: the catalog or the store does not let this login load it.
        :raises TableDamaged: the store lacks its newest metadata file, but has that of the checkpoint table.
        :raises LakeUnavailable: the catalog did not answer.
        """
        try:
            java = _seen_by_spark(spark, name)
        except JAVA_ERRORS as error:
            found = java_class(error)
            if found.endswith(("NoSuchTableException", "NoSuchNamespaceException")):
                return None
            reason = _of_catalog(spark, name.catalog) or error
            if named := sure_cause(reason, name.target):
                raise named from error
            if found.endswith(("ClassCastException", "IllegalArgumentException")):
                raise TableRefused(
                    "This is not an Iceberg table.",
                    table=name.target,
                    advice="name another target for the source's table, or rename this one.",
                ) from error
            if path := _missing_metadata(spark, name, error):
                raise TableDamaged.of_file(path, "is missing", name.target) from error
            raise LakeUnavailable(
                f"The catalog did not answer: {java_class(reason)}.", table=name.target
            ) from error
        return cls(spark, name, java)

    def refresh(self) -> None:
        """Look at the table again. Spark's next statement on it sees at least the same.

        Spark may keep another table in Java, see ``_seen_by_spark``, without our branch or column.
        """
        self.java = _seen_by_spark(self._spark, self.name)

    @property
    def format_version(self) -> int:
        """The format version, https://iceberg.apache.org/spec/#format-versioning."""
        return int(self.java.operations().current().formatVersion())

    @property
    def can_delete_rows(self) -> bool:
        """Whether the format version has deletes of single rows."""
        return self.format_version >= _FIRST_WITH_ROW_DELETES

    @property
    def has_deletion_vectors(self) -> bool:
        """Whether deletes are written as deletion vectors, not as files of positions."""
        return self.format_version >= _FIRST_WITH_DELETION_VECTORS

    @property
    def can_have_defaults(self) -> bool:
        """Whether a new column may have a default, which Iceberg shows in older rows."""
        return self.format_version >= _FIRST_WITH_DEFAULTS

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties, see ``TableName.seen``."""
        return self.name.seen(self.whole_properties)

    @property
    def whole_properties(self) -> dict[str, str]:
        """The table's properties, with those of all slices."""
        if self.name.slice is None:
            return texts(self._jvm, self.java.properties())
        return shared_state(self._jvm, self.java).properties

    def seen_by(self, slice_: Slice) -> IcebergTable:
        """A shared table as one of its slices sees it."""
        name = dataclasses.replace(self.name, slice=slice_)
        return IcebergTable(self._spark, name, self.java)

    def whole(self, slices: Sequence[Slice]) -> IcebergTable:
        """A shared table as a whole. Only the files of some slices are looked for."""
        found = IcebergTable(self._spark, dataclasses.replace(self.name, slice=None), self.java)
        found.slice_files = SliceFiles(self._jvm, slices)
        return found

    def stored_name(self, name: str) -> str:
        """The name under which the table keeps a property of ``properties``."""
        return name if self.name.slice is None else self.name.slice.stored_name(name)

    @property
    def schema(self) -> dict[str, Any]:
        """The current schema as Iceberg's JSON."""
        if self.name.slice is None:
            return schema_as_json(self._jvm, self.java.schema())
        return shared_state(self._jvm, self.java).schema

    @property
    def head(self) -> int | None:
        """Snapshot id of main; None when nothing was ever committed to it."""
        return self.branch_head(MAIN)

    @property
    def head_ms(self) -> int | None:
        """When main's head was committed: ms since 1970, by its writer's clock; None: there is no head."""
        snapshot = self.java.currentSnapshot()
        return None if snapshot is None else int(snapshot.timestampMillis())

    def branch_head(self, branch: str) -> int | None:
        """Snapshot id of a branch; None when the branch does not exist."""
        reference = self.java.refs().get(branch)
        return None if reference is None else int(reference.snapshotId())

    @property
    def is_empty(self) -> bool:
        """Whether main holds no rows, or none of the slice. A summary alone does not say so.

        After a commit to a branch that is gone, Iceberg counts from zero. So files are looked for, too.
        """
        snapshot = self.java.currentSnapshot()
        if snapshot is not None and (own := self.name.own()) is not None:
            known = self.slice_files.is_empty(self.java, int(snapshot.snapshotId()))
            return self._spark.table(self.name.sql).where(own).isEmpty() if known is None else known
        if snapshot is None or snapshot.summary().get("total-records") != "0":
            return snapshot is None
        manifests = elements(snapshot.dataManifests(self.java.io()))
        return not any(each.hasAddedFiles() or each.hasExistingFiles() for each in manifests)

    def applied(self, slot_name: str) -> Applied:
        """Which batch of a slot main ends with, and which one was published last."""
        text = self.properties.get(lake_names.PROPERTY_APPLIED + slot_name)
        return find_applied(slot_name, self.snapshots(slot_name), text)

    def marker(self, slot_name: str) -> Marker | None:
        """The batch of a slot that main ends with; None: there is none."""
        return self.applied(slot_name).marker

    def keep_until_replaced(self, tag: str, snapshot_id: int) -> None:
        """Set a tag that does not expire to a snapshot. The snapshot that it named before is released.

        :raises PublishRefused: the table changed at the same time.
        :raises CommitStateUnknown: the catalog did not say; repeating it is safe.
        """
        change = self.java.manageSnapshots()
        exists = self.java.refs().get(tag) is not None
        (change.replaceTag if exists else change.createTag)(tag, snapshot_id)
        self.change(change.commit)

    def head_at(self, moment_ms: int) -> int | None:
        """The snapshot that was main's head at a moment, in ms since 1970; None: it is not there any more.

        A batch makes several snapshots on its branch before it is published. Only the last one is ever main's
        head.
        """
        found = None
        for entry in elements(self.java.history()):
            if int(entry.timestampMillis()) <= moment_ms:
                found = int(entry.snapshotId())
        return found if found is not None and self.java.snapshot(found) is not None else None

    def snapshot_of(self, batch_id: str, since: int | None = None) -> int | None:
        """The newest snapshot of a batch in main's history; None: there is none any more.

        :param since: only snapshots after this one count; None: all count.
        """
        for snapshot in self.history():
            if since is not None and int(snapshot.snapshotId()) == since:
                return None
            summary, ours = snapshot.summary(), self.name.slice
            is_ours = ours is None or ours.is_in(summary.get(SUMMARY_SLICE))
            if is_ours and summary.get(lake_names.SUMMARY_BATCH_ID) == batch_id:
                return int(snapshot.snapshotId())
        return None

    def snapshots(self, slot_name: str) -> Iterator[Snapshot]:
        """As ``history``, with what the rules of a slot's batches need of each (``batch/applied.py``)."""
        return (self._plain(each, slot_name) for each in self.history())

    def tagged(self, slot_name: str) -> Iterator[Snapshot]:
        """The snapshots under tags, as ``snapshots`` gives them."""
        for _, reference in entries(self.java.refs()):
            if reference.isTag():
                yield self._plain(self.java.snapshot(reference.snapshotId()), slot_name)

    def history(self) -> Iterator[Any]:
        """The snapshots of main's history that still exist, newest first."""
        snapshot = self.java.currentSnapshot()
        while snapshot is not None:
            yield snapshot
            parent_id = snapshot.parentId()
            snapshot = None if parent_id is None else self.java.snapshot(parent_id)

    def end_of(self, snapshot_id: int, slot_name: str) -> Lsn | None:
        """Where the batch of a snapshot ends; None: the snapshot is gone, or not of the slot."""
        snapshot = self.java.snapshot(snapshot_id)
        batch = None if snapshot is None else batch_of(self._plain(snapshot, slot_name), slot_name)
        return None if batch is None else batch.end_lsn

    def _plain(self, java: Any, slot_name: str) -> Snapshot:
        """A snapshot as plain values. Each one costs a call to Java, so other writers' keys are not read."""
        found, ours = java.summary(), self.name.slice
        is_ours = found.get(lake_names.SUMMARY_SLOT) == slot_name
        if ours is not None:
            is_ours = is_ours and ours.is_in(found.get(SUMMARY_SLICE))
        summary = {key: found.get(key) for key in lake_names.SUMMARY_KEYS} if is_ours else {}
        return Snapshot(
            int(java.snapshotId()),
            int(java.sequenceNumber()),
            java.parentId() is not None,
            {key: str(text) for key, text in summary.items() if text is not None},
        )

    def slice_has_changed(self, since: int | None) -> bool:
        """Whether somebody wrote to the slice after a snapshot, or main lost the snapshot.

        :param since: the snapshot, once the head of main; None: main had no snapshot.
        """
        assert self.name.slice is not None, "it is asked of slices only"
        for snapshot in self.history():
            if int(snapshot.snapshotId()) == since:
                return False
            if self.name.slice.is_in(snapshot.summary().get(SUMMARY_SLICE)):
                return True
        return since is not None

    def summary_of(self, snapshot_id: int, slot_name: str) -> dict[str, str]:
        """The keys that say which batch of a slot made a snapshot."""
        return dict(self._plain(self.java.snapshot(snapshot_id), slot_name).summary)

    def replace_main(self, branch: str, base: int | None, head: int | None) -> None:
        """Make a branch the head of main and remove it, without the marks of a batch's publish.

        :param base: main's head when the branch was made.
        :param head: the branch's newest snapshot.
        :raises PublishRefused: main or the branch has moved.
        :raises CommitStateUnknown: the catalog did not say.
        """
        self.refresh()
        if head is None or self.branch_head(branch) != head or self.head != base:
            raise PublishRefused("Main moved since the branch was made.", table=self.name.target)
        change = self.java.manageSnapshots().fastForwardBranch(MAIN, branch).removeBranch(branch)
        self.change(change.commit)

    def has_other_columns(self, snapshot_id: int) -> bool:
        """Whether the columns have changed since a snapshot was written."""
        then = self.java.snapshot(snapshot_id).schemaId()
        return then is None or int(then) != int(self.java.schema().schemaId())

    def go_back(self, snapshot_id: int) -> None:
        """Make an existing snapshot the head of main.

        :raises PublishRefused: the table changed at the same time.
        :raises CommitStateUnknown: the catalog did not say; repeating it is safe.
        """
        self.change(lambda: self.java.manageSnapshots().setCurrentSnapshot(snapshot_id).commit())

    def create_branch(self, branch: str, head: int | None) -> None:
        """Make a branch from snapshot ``head``; if main has no snapshot, from an empty one.

        :raises PublishRefused: the table changed at the same time, or the snapshot is gone.
        :raises CommitStateUnknown: the catalog did not say; an unused branch may be left behind.
        """
        started_at = (branch,) if head is None else (branch, head)
        self.change(lambda: self.java.manageSnapshots().createBranch(*started_at).commit())
        if self.branch_head(branch) is None:
            # Rows that are written to a branch that is not there may reach main.
            raise PublishRefused(
                "A branch of it was made and is not there.",
                table=self.name.target,
                advice="nothing, if another driver took this batch over; if it lasts, the catalog keeps no"
                " branches, and another one is needed.",
            )

    def delete_all(self, branch: str) -> None:
        """Empty a branch with one metadata commit, however large the table is."""
        expressions = class_named(self._jvm, "org.apache.iceberg.expressions.Expressions")
        everything = expressions.alwaysTrue()
        self.java.newDelete().deleteFromRowFilter(everything).toBranch(branch).commit()
        self.refresh()

    def delete_files(self, branch: str, paths: Sequence[str]) -> None:
        """Remove data files from a branch."""
        delete = self.java.newDelete().toBranch(branch)
        text = class_named(self._jvm, "java.lang.StringBuilder")
        for path in paths:
            # Not a Python str: with one, Py4J would call another method, which deletes the file itself.
            delete = delete.deleteFile(text(path))
        delete.commit()
        self.refresh()

    def replace_rows(
        self,
        branch: str,
        head: int | None,
        rows: Sequence[Any],
        deletes: Sequence[Any],
        replaced: Sequence[Any],
        marker: Mapping[str, str],
    ) -> None:
        """Commit data files and delete files to a branch, in one commit.

        :param head: the snapshot to which the positions in the delete files belong.
        :param replaced: delete files whose place the new ones take.
        :param marker: summary keys of the commit.
        :raises PublishRefused: the branch is not made from ``head``, or the table changed at the same time.
        :raises CommitStateUnknown: the catalog did not say.
        """
        change = self.java.newRowDelta().toBranch(branch)
        if head is not None:
            change = change.validateFromSnapshot(head)
        for each in rows:
            change = change.addRows(each)
        for each in deletes:
            change = change.addDeletes(each)
        for each in replaced:
            change = change.removeDeletes(each)
        for key, value in marker.items():
            change = change.set(key, value)
        self.change(change.commit)

    def mark(self, branch: str, marker: Mapping[str, str]) -> None:
        """Commit only the summary keys to a branch, and no rows."""
        append = self.java.newFastAppend().toBranch(branch)
        for key, value in marker.items():
            append = append.set(key, value)
        append.commit()
        self.refresh()

    def remove_branches(self, names: list[str]) -> None:
        """Remove branches. Iceberg's expiry of snapshots removes their files later.

        :raises PublishRefused: the table changed at the same time, or a branch is gone already.
        :raises CommitStateUnknown: the catalog did not say; repeating it is safe.
        """
        if not names:
            return

        def commit() -> None:
            change = self.java.manageSnapshots()
            for name in names:
                change = change.removeBranch(name)
            change.commit()

        self.change(commit)

    def branch_ages_ms(self) -> dict[str, int]:
        """Our branches, with the time of their newest commit in ms since 1970."""
        return {
            name: int(self.java.snapshot(reference.snapshotId()).timestampMillis())
            for name, reference in entries(self.java.refs())
            if reference.isBranch() and name.startswith(lake_names.BRANCH_PREFIX)
        }

    def publish(
        self,
        branch: str,
        base: int | None,
        head: int | None,
        manifest: Manifest,
        tag_days: int,
        done: frozenset[str] = frozenset(),
        of_rows: Mapping[str, str] | None = None,
        others: Sequence[Slice] = (),
    ) -> int:
        """Make ``branch`` the head of main, tag it and remove it, in one metadata commit.

        :param base: main's head when the branch was made. If main has moved, the commit is refused.
        :param head: the branch's newest snapshot. If the branch has another, the commit is refused.
        :param done: properties that note work which the branch has done. They are removed.
        :param of_rows: properties that tell of the rows, and change with them.
        :param others: further slices that have the batch then.
        :raises PublishRefused: main or the branch has moved.
        :raises TableRefused: Iceberg refuses the properties.
        :raises CommitStateUnknown: the catalog did not say; look before trying again.
        """
        if head is None or self.branch_head(branch) != head or self.head != base:
            raise PublishRefused("Main moved since the branch was made.", table=self.name.target)
        try:
            what = Publication(
                self.name, branch, head, manifest, tag_days, done, of_rows or {}, others
            )
            transaction = what.transaction(self.java, self.whole_properties)
        except JAVA_ERRORS as error:
            # Iceberg read the table again and found that main or the branch has moved.
            raise sure_cause(error, self.name.target) or PublishRefused(
                "The table changed while the batch was published.", table=self.name.target
            ) from error
        self.change(transaction.commitTransaction)
        return head

    def change(self, commit: Callable[[], object]) -> None:
        """Commit a change of references. A failure becomes one of our errors.

        :raises PublishRefused: the table changed at the same time.
        :raises CommitStateUnknown: the catalog did not say whether it committed.
        """
        try:
            commit()
        except JAVA_ERRORS as error:
            raise commit_failure(self._jvm, error, self.name.target) from error
        self.refresh()


def _seen_by_spark(spark: SparkSession, name: TableName) -> Any:
    """The table that Spark's statements use, as the catalog has it now.

    Spark keeps a table that was used in the last 30 seconds, and does not look at it again. When a statement
    takes longer, Spark forgets the table. A later statement loads another one, and from then on only that one
    counts.

    Source: https://iceberg.apache.org/docs/latest/spark-configuration/ (cache-enabled)
    """
    jvm: Any = spark._jvm
    activate(spark)
    spark_util = class_named(jvm, "org.apache.iceberg.spark.Spark3Util")
    java = spark_util.loadIcebergTable(spark._jsparkSession, name.sql)
    java.refresh()
    return java


def _missing_metadata(spark: SparkSession, name: TableName, error: Exception) -> str | None:
    """The path of the metadata file of a target, if it is missing; None: the failure is something else.

    An exception alone proves nothing. The store may be out, so it must show the metadata file of the
    checkpoint table. And a commit may have replaced the file since the catalog named it, so the table is
    loaded once more.
    """
    path = _path_of_metadata(error)
    if path is None or name.name in lake_names.OWN_TABLES:
        return None
    try:
        _seen_by_spark(spark, name)
    except JAVA_ERRORS as again:
        if _path_of_metadata(again) != path:
            return None
    else:
        return None
    try:
        own = dataclasses.replace(name, name=lake_names.CHECKPOINT_TABLE)
        checkpoint = _seen_by_spark(spark, own)
        # Spark may know the table, and then nothing was read.
        location = checkpoint.operations().current().metadataFileLocation()
        return path if checkpoint.io().newInputFile(location).exists() else None
    except JAVA_ERRORS:
        return None


def _path_of_metadata(error: Exception) -> str | None:
    """The path of a metadata file that the store lacks, from a Java exception; None: it is another one."""
    messages = (
        str(each.getMessage())
        for each in exceptions(error)
        if str(each.getClass().getName()) == _FILE_NOT_FOUND
    )
    found = _METADATA_FILE.search(next(messages, ""))
    return None if found is None else found[0]


def _of_catalog(spark: SparkSession, name: str) -> Exception | None:
    """Why a catalog cannot be opened; None: it can.

    Iceberg itself would only say that there is no such catalog.
    """
    java: Any = spark._jsparkSession
    try:
        java.sessionState().catalogManager().catalog(name)
    except JAVA_ERRORS as error:
        return error
    return None


def discard(spark: SparkSession, name: TableName, branch: str) -> None:
    """Remove a branch that nobody will publish, if it exists. A failure does not stop the apply.

    A branch that is left is removed when the batch is applied again, or when it is a day old.
    """
    try:
        table = IcebergTable.load(spark, name)
        if table is not None and table.branch_head(branch) is not None:
            table.remove_branches([branch])
    except (PgoutputError, *JAVA_ERRORS) as error:
        found = type(error).__name__
        log.warning("Branch %s of %s stays for now: %s.", branch, name.target, found)
