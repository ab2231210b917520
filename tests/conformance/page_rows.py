"""Lines of the page of conformance that no scenario says: tests of another form, and what does not run.

What is not here: the scenarios, and the page.
"""

from __future__ import annotations

_REFUSED = "test_refusals.py::test_a_change_that_the_lake_cannot_follow_is_refused"
_SCHEMA = "test_schema_changes.py::"
_LIFE = "test_table_life.py::"
_EVENTS = "test_source_events.py::"
_OLDER_ROWS = "tests/capture/schema/test_older_rows.py::"
_CAPTURE = "tests/capture/test_pipeline_refusals.py::"
_GAPS = "tests/capture/source/test_publication_gaps.py::"
_GONE = "tests/capture/schema/test_gone.py::"
_ASIDE = "tests/capture/test_staging_set_aside.py::"
_STANDBY = (
    "tests/capture/test_standby.py::"
    "test_a_standby_is_read_over_a_promotion_of_its_primary_and_its_own"
)
_TIMELINES = (
    "tests/capture/source/test_timelines.py::test_a_source_that_left_the_lakes_history_is_refused"
)

#: Id, what happens, what must hold, and the test: in tests/conformance, or with its whole path.
OTHER_TESTS = (
    (
        "C26",
        "a partial update of a row that the target does not hold",
        "`RowMissing`; nothing is published, the checkpoint stays",
        "test_refusals.py::test_c26_a_partial_update_of_a_missing_row_is_refused",
    ),
    (
        "C85",
        "logical messages, transactional or not, and one that is rolled back",
        "each is in `pgoutput_messages` once, over both transports; none that was rolled back",
        "test_messages_and_origins.py::test_c85_logical_messages_reach_their_table_once",
    ),
    (
        "C86",
        "logical messages that nobody asked for",
        "no table `pgoutput_messages`",
        "test_messages_and_origins.py::test_c86_without_messages_there_are_none",
    ),
    (
        "C87",
        "transactions that the source replicated from another server",
        "a change log names their origin, over both transports; `origin` `none` leaves them out",
        "test_messages_and_origins.py::test_c87_origins_are_named_or_left_out",
    ),
    (
        "C88",
        "two origins in turn, then none",
        "each change log row has the origin of its own transaction or none",
        "test_messages_and_origins.py::test_c88_an_origin_is_that_of_its_transaction_alone",
    ),
    (
        "C190",
        (
            "partitions published via their root have other replica identities than it, changed in the"
            " middle of a batch, over both transports"
        ),
        "the key that all of them send is taken; every row is the source's",
        (
            "tests/capture/source/test_partition_identity.py"
            "::test_c190_a_root_with_another_identity_than_its_partitions"
        ),
    ),
    (
        "C190",
        "the same up to the lake, also as a change log, and with whole old rows under a root without a key",
        "equal; a change that cannot be followed is refused, and the table copied on request",
        "test_partition_life.py::test_c190_partitions_whose_identity_is_not_that_of_their_root",
    ),
    (
        "C190",
        "a partition does not send the key of its root",
        (
            "`TableRefused` at the first change that may be its; a copy goes on, by hand or by"
            " `on_unknown_default`"
        ),
        (
            "tests/capture/source/test_partition_identity.py"
            "::test_c190_a_partition_that_does_not_send_the_key_of_its_root"
        ),
    ),
    (
        "C190",
        "a partition gets another identity and its old one back between two batches, and in a transaction",
        "noticed by what the stream announces, with streaming and without",
        (
            "tests/capture/source/test_partition_identity.py"
            "::test_c190_an_identity_that_was_changed_and_changed_back_is_noticed"
        ),
    ),
    (
        "C191",
        "the partitions have primary keys and their root has none",
        "`TableRefused`, which names `key_columns`; with it every row is the source's, without a copy",
        "test_partition_life.py::test_c191_primary_keys_of_partitions_alone",
    ),
    (
        "C92",
        "a publication that was dropped, or made too late",
        "`PublicationMissing`, over both transports; slot, checkpoint and lake stay",
        "test_refusals.py::test_c92_a_dropped_publication_stops_the_run",
    ),
    (
        "C35",
        "two publications give a table different column lists",
        "`ConfigurationError` before the read; the slot stays",
        "tests/capture/test_server_states.py::test_c35_c36_different_column_lists_stop_the_run",
    ),
    (
        "C36",
        "a column list, and FOR ALL TABLES in another publication",
        "`ConfigurationError` before the read; the slot stays",
        "tests/capture/test_server_states.py::test_c35_c36_different_column_lists_stop_the_run",
    ),
    (
        "C54",
        "the type of a column changes to one that Iceberg cannot widen to",
        "`TableRefused`; nothing is published",
        f"{_REFUSED}[C54]",
    ),
    (
        "C37",
        "the key moves to a column that PostgreSQL has just filled in without row events",
        "`TableRefused`, and a copy goes on; no row is doubled",
        "test_lake_refusals.py::test_a_key_that_older_rows_have_and_nobody_tells_is_refused",
    ),
    (
        "C49",
        "a column is dropped and added again: with rows that tell them apart, and without",
        "a new column, the old one beside it; `TableRefused` or what `on_unsure_column` says",
        f"{_SCHEMA}test_a_column_dropped_and_added_again_is_new",
    ),
    (
        "C53",
        "columns are renamed and swapped, the key among them, between batches and in a transaction",
        "the fields are renamed and keep their ids; every value is the source's",
        f"{_SCHEMA}test_a_renamed_column_keeps_its_field",
    ),
    (
        "C54",
        'the same, with `keep_retyped_columns` and with `on_type_change="copy"`',
        "the new values; the old ones stay in a column of another name, or the table is copied again",
        f"{_SCHEMA}test_a_type_that_cannot_be_followed_is_refused_copied_or_made_a_new_column",
    ),
    (
        "C60",
        "a composite in the key, text in the lake, is altered; an enum whose array a column has is replaced",
        "`TableRefused` until the table is copied; a list before and after, in one batch",
        "test_altered_composites.py::test_types_that_are_text_in_the_lake_are_altered_and_replaced",
    ),
    (
        "C60",
        "types of all kinds are altered and replaced, nested in each other; a transaction is open meanwhile",
        "each column is named, none that only gets new values",
        "tests/capture/schema/test_altered_types.py::test_whatever_prints_otherwise_is_named",
    ),
    (
        "C60",
        "types that are gone when the batch is read: enums, domains, composites, ranges, arrays of them",
        "each version of the table has the type that it had",
        "tests/capture/types/test_gone_types.py::test_replaced_types_are_what_they_were",
    ),
    (
        "C55",
        "a default that neither stream nor catalog tells, with `on_unknown_default` set to each of its words",
        "NULL and a warning; the default; the source's values",
        f"{_SCHEMA}test_what_older_rows_show_is_null_a_default_or_copied",
    ),
    (
        "C57",
        "a table is dropped and created again",
        "`TableRefused`; nothing is published",
        f"{_REFUSED}[C57]",
    ),
    ("C58", "a table is renamed", "`TableRefused`; nothing is published", f"{_REFUSED}[C58]"),
    (
        "C59",
        "a schema is renamed and made again in one transaction: two tables had one name",
        "`TableRefused`; nothing is published",
        f"{_REFUSED}[C59]",
    ),
    (
        "C59",
        "the same with `on_recreated_table`, and the schema is renamed again in a later transaction",
        "over both transports: each table has its own rows, after a copy and without one",
        f"{_LIFE}test_c59_two_tables_that_had_one_name_in_a_transaction_are_told_apart",
    ),
    (
        "C65",
        "a database in SQL_ASCII holds bytes that are no UTF-8",
        "the run stops; the slot stays",
        "tests/capture/test_server_states.py::test_c65_bytes_that_are_no_utf8_stop_the_run",
    ),
    (
        "C67",
        "a table without columns, and one that loses all of its columns",
        "left out with a warning; it joins when it gets a column",
        f"{_GONE}test_a_table_without_columns_is_left_out_and_named_until_it_has_one",
    ),
    (
        "C68",
        "1600 columns",
        "staged exactly",
        "tests/capture/test_server_states.py::test_c68_1600_columns",
    ),
    (
        "C68",
        "1600 columns up to the lake (`make test ALL=1`)",
        "equal, read with Spark and with pyiceberg",
        "test_wide_and_odd_tables.py::test_as_many_columns_as_a_table_can_have",
    ),
    (
        "C66",
        "columns of every name that PostgreSQL takes: made, added, renamed, as keys",
        "equal, read with Spark and with pyiceberg; fields keep their ids",
        "test_wide_and_odd_tables.py::test_columns_of_every_name",
    ),
    (
        "C81",
        "the server, the reader, both or neither crash between PREPARE and its end",
        "the rows come with COMMIT PREPARED, and never after ROLLBACK PREPARED",
        "tests/capture/test_server_states.py::test_c81_a_prepared_transaction_survives_crashes",
    ),
    (
        "C84",
        "no table of a publication changes",
        "the batch is empty and the slot moves on",
        "tests/capture/test_server_states.py::test_c84_a_silent_publication_still_moves_the_checkpoint",
    ),
    (
        "C93",
        'the same with `initial_copy="never"`',
        "measured: 2 of 5 rows are missing, and a warning names the table",
        (
            "tests/capture/test_server_states.py"
            "::test_c93_without_a_copy_rows_of_open_transactions_are_missing"
        ),
    ),
    (
        "C95",
        "a clean restart",
        "nothing is sent again",
        "tests/capture/test_server_states.py::test_c95_a_clean_restart_repeats_nothing",
    ),
    (
        "C96",
        "a crash takes the slot back to an older position",
        "nothing is staged or applied again",
        (
            "tests/faults/test_positions.py"
            "::test_f20_what_a_crashed_server_delivers_again_is_not_applied_again"
        ),
    ),
    (
        "C97",
        "the server removed WAL that the slot needs",
        "`SlotLost`; the slot is not made anew",
        "tests/capture/test_server_states.py::test_c97_a_slot_whose_wal_is_gone_is_lost",
    ),
    (
        "C101",
        "commits with `synchronous_commit` off",
        "never past the flushed WAL; none is lost",
        "tests/capture/test_server_states.py::test_c101_what_is_not_flushed_is_not_read",
    ),
    (
        "C104",
        "transactions that are open when the slot is made; DDL beside DML",
        "each row is in the copy or in the stream, once, with the columns of its time",
        (
            "tests/capture/test_server_states.py"
            "::test_c104_a_slot_waits_for_transactions_that_began_before_it"
        ),
    ),
    (
        "C35",
        "the same, from the server into the lake",
        "nothing is published; one of the two publications reads on, and later both",
        f"{_EVENTS}test_different_column_lists_stop_the_run[c35]",
    ),
    (
        "C36",
        "the same, from the server into the lake",
        "nothing is published; one of the two publications reads on, and later both",
        f"{_EVENTS}test_different_column_lists_stop_the_run[c36]",
    ),
    (
        "C48",
        "partitions are attached with rows, detached, dropped and made again, via the root",
        (
            "a root that got rows with a partition is copied again; with `initial_copy='never'` a warning"
            " names it and `copy_tables` mends it; rows of a dropped partition stay until then"
        ),
        "test_partition_life.py::test_partitions_published_via_their_root",
    ),
    (
        "C48",
        "the same, published as themselves",
        "each is a table like any other; one that was detached for a while is copied again",
        "test_partition_life.py::test_partitions_published_as_themselves",
    ),
    (
        "C52",
        "tables move in and out of published schemas and from one to another, also as a change log",
        "a table that the publications lacked for a while is copied; one that left stays as it was",
        f"{_LIFE}test_tables_that_leave_a_publication_and_come_to_one",
    ),
    (
        "C57",
        "tables of any kind are dropped and created again, once and twice, with `on_recreated_table`",
        "`TableRefused`; with `copy` exactly the new table's rows, also as a change log",
        f"{_LIFE}test_a_table_that_was_made_again_replaces_the_former_one",
    ),
    (
        "C58",
        "tables are renamed, moved and swapped, and another takes the name",
        "`TableRefused` for each; its `target` option or `copy_tables` goes on",
        f"{_LIFE}test_a_renamed_or_moved_table_goes_on_as_it_is_told",
    ),
    (
        "C90",
        "new tables of a publication FOR ALL TABLES, with `on_new_table` `ignore` and `fail`",
        "left out with a warning, or `TableRefused`, until `copy_tables` names them",
        f"{_LIFE}test_c90_new_tables_are_left_out_or_stop_the_run_until_they_are_named",
    ),
    (
        "C91",
        'the same with `initial_copy="never"`',
        "over both transports: three inserts arrive, a warning names the table; `copy_tables` closes the gap",
        f"{_LIFE}test_c91_without_a_copy_what_was_published_flows_and_the_gap_is_named",
    ),
    (
        "C93",
        "the transactions go on and commit while the run waits for them",
        "over both transports: every row that was not deleted is in the lake",
        f"{_EVENTS}test_c93_transactions_that_go_on_while_the_copy_waits_for_them",
    ),
    (
        "C103",
        "keys that a nondeterministic collation takes for equal, with REPLICA IDENTITY DEFAULT and FULL",
        "over both transports in turn: keys are known by their bytes (18: the build here lacks ICU)",
        (
            "test_collations.py"
            "::test_c103_keys_that_a_collation_takes_for_equal_are_known_by_their_bytes"
        ),
    ),
    (
        "C84",
        "the same, from the server into the lake",
        "only the checkpoint moves, and the slot with it",
        f"{_EVENTS}test_c84_a_silent_publication_moves_the_checkpoint_alone",
    ),
    (
        "C97",
        "the same, with `on_slot_lost`",
        "the lake stays as it was; with `copy` it is the source again, and goes on",
        f"{_EVENTS}test_c97_a_lost_slot_stops_the_run_until_it_may_copy",
    ),
    (
        "C101",
        "the same, from the server into the lake",
        "after each run the lake is the source at an earlier moment",
        f"{_EVENTS}test_c101_commits_that_are_not_flushed_yet_come_later",
    ),
    (
        "C104",
        "the same with nested, rolled back and locking transactions, into the lake",
        "the lake is the source",
        f"{_EVENTS}test_c104_transactions_that_are_open_when_the_slot_is_made",
    ),
    (
        "C105",
        "a commit is in WAL and commit log and has not ended while a slot is made",
        "the slot waits for it; its row is in the lake, once",
        f"{_EVENTS}test_c105_a_commit_that_is_in_the_wal_and_has_not_ended",
    ),
    (
        "C105",
        "the same, with the commit held before the commit log is written",
        (
            "the copy waits for it; the row is in the lake, and still in the source (without the wait it is"
            " in neither, seen on 15.19, 17.11 and 18.6)"
        ),
        "test_late_commits.py::test_c105_a_commit_that_is_in_the_wal_and_not_in_the_commit_log",
    ),
    (
        "C182",
        "a view of the lake has the name of a target, or of a table of the pipeline's own",
        "refused by name before anything is published; another target or another name of the view helps",
        "tests/apply/test_target_names.py::test_the_name_of_a_view_is_refused_and_given_back",
    ),
    (
        "C184",
        "`doctor` is asked while a run is under way",
        "it names the tasks, and asks for nothing that the run itself will clear up",
        "tests/airflow/cli/test_diagnose.py::test_what_a_run_under_way_leaves_for_a_while_is_not_told_as_something_to_do",
    ),
    (
        "C183",
        "a generated column becomes an ordinary one, and gets a default",
        "a warning says that it is published now; older rows are copied, or NULL, never the default",
        f"{_OLDER_ROWS}test_a_generated_column_that_becomes_an_ordinary_one_has_values_that_nobody_sent",
    ),
    (
        "C181",
        "`drop_columns`, and a column by which the lake's table was once partitioned, in several ways",
        "the column stays, rows are updated and deleted as before",
        "test_lake_partitions.py::test_a_column_of_an_earlier_partitioning_stays",
    ),
    (
        "C181",
        "such a column was dropped all the same",
        "refused by name; the advice of the error helps, and the way back to merge-on-read works",
        "test_lake_partitions.py::test_a_partitioning_whose_column_is_gone_is_named_and_mended",
    ),
    (
        "C180",
        "a database has odd settings, all at once: `quote_all_identifiers`, `array_nulls` and two dozen more",
        "copy and stream are the same as without them, and a missing publication is still refused",
        "tests/capture/source/test_session.py::test_hostile_defaults_change_nothing",
    ),
    (
        "C160",
        "tables whose changes cannot be followed are dropped, or leave the publication, in the same batch",
        "over both transports: each keeps its last good state; a warning names the changes passed over",
        f"{_GONE}test_of_tables_that_are_gone_is_staged_what_can_be_followed",
    ),
    (
        "C160",
        "the same, upserted and as a change log, into the lake",
        "the other tables are equal",
        "test_tables_that_go.py::test_a_table_that_is_gone_keeps_its_last_good_state_and_stops_no_other",
    ),
    (
        "C161",
        "several batches hold changes of such a table, which is published again later",
        "its changes are passed over until a run copies the table",
        f"{_GONE}test_what_follows_in_later_batches_is_passed_over_until_the_table_is_copied",
    ),
    (
        "C192",
        "a table is dropped and made again under its name, and once more, in one batch; then it is gone",
        "the lake's table keeps its last good state; a warning names the others, which are passed over",
        f"{_GONE}test_of_tables_with_one_name_that_are_gone_one_is_staged",
    ),
    (
        "C193",
        "a table is dropped or renamed, or a column of it, or gets another type, while it waits to be copied",
        "it is copied as it is then; the other tables are copied",
        (
            "tests/capture/copy/test_ddl_beside_copies.py::"
            "test_a_table_that_is_altered_while_it_waits_to_be_copied"
        ),
    ),
    (
        "C194",
        (
            "`FOR ALL TABLES` via the root: a partition is detached, gets rows as a table of its own and is"
            " attached again in one batch"
        ),
        "the root is copied again; with `initial_copy='never'` it is refused by name",
        f"{_GAPS}test_rows_of_a_partition_that_was_a_table_for_a_while_stop_the_run",
    ),
    (
        "C194",
        "the same publication: a table is made, filled and attached as a partition",
        "the root is copied again; with `initial_copy='never'` it is refused by name",
        f"{_GAPS}test_rows_of_a_table_that_became_a_partition_stop_a_run_that_copies_nothing",
    ),
    (
        "C194",
        "a table with rows is attached as a partition, and the publication names the root or all tables",
        "the root is copied again",
        f"{_GAPS}test_a_root_is_copied_again_if_a_table_with_rows_became_its_partition",
    ),
    (
        "C195",
        (
            "a generated column is published for a part of a batch and dropped; another column is renamed"
            " meanwhile"
        ),
        "every column keeps its number, so the older rows of the renamed one keep their values",
        f"{_GAPS}test_a_generated_column_that_is_published_for_a_while_has_its_number",
    ),
    (
        "C196",
        "the key is of type `regclass`, and two tables change their names",
        "`TableRefused` until the table is copied, or `key_columns` names the key; then equal",
        (
            "test_altered_composites.py::"
            "test_keys_that_are_names_of_objects_are_not_lost_when_the_objects_are_renamed"
        ),
    ),
    (
        "C197",
        "a column is added, rows are written, and then its type is altered, in one batch",
        "a warning names the column and the type; a copy makes it equal",
        (
            "tests/capture/schema/test_altered_types.py"
            "::test_a_type_that_is_altered_after_rows_of_a_column_that_is_new"
        ),
    ),
    (
        "C198",
        "a column is renamed while the slot is made, and the server waits for open transactions",
        "the slot is made anew; every version of the table has the new name",
        (
            "tests/capture/slot/test_slot_creation.py"
            "::test_c198_a_table_that_is_altered_while_the_slot_is_made_is_described_as_it_is"
        ),
    ),
    (
        "C199",
        (
            'with `on_table_refused="set_aside"`: nine tables that cannot be staged in one batch, each'
            " for another reason"
        ),
        "over both transports: the others are staged, each is named; a copy brings it back",
        f"{_ASIDE}test_a_table_that_cannot_be_staged_stops_no_other",
    ),
    (
        "C199",
        "the same answer: tables that cannot be copied, at the first run and later",
        "the others are copied; each is named",
        f"{_ASIDE}test_a_table_that_cannot_be_copied_stops_no_other",
    ),
    (
        "C199",
        "the same, upserted and as a change log, into the lake, with kills between seal and checkpoint",
        "the others are equal, the slot goes on; copies make all equal",
        "test_tables_set_aside.py::test_tables_that_cannot_be_staged_stop_no_other_and_come_back",
    ),
    (
        "C200",
        (
            "masked columns: copied, inserted, updated with unchanged TOAST, a masked key that changes,"
            " deleted, FULL, rejected, with a default of older rows; text and binary"
        ),
        "over both transports: no staged byte and no line of the log has a plain value",
        "tests/capture/test_masks.py::test_no_plain_value_leaves_the_worker",
    ),
    (
        "C200",
        "the same into the lake, then another secret, then no masks",
        "no plain value in the lake; rows are found by hashes; other masks are refused until a copy",
        "test_masked_columns.py::test_masked_columns",
    ),
    (
        "C201",
        "tables of several schemas get their names in the lake by a pattern",
        "two tables with one name, and another pattern later, are refused before anything is written",
        "test_names_by_pattern.py::test_names_by_pattern",
    ),
    (
        "C202",
        (
            "masks, a filter, renamed and constant columns, and two tables in one, all at once: keys that"
            " change, rows that come and go, TOAST, TRUNCATE, a column with a default"
        ),
        (
            "in each mode the lake, or the view of a change log, has the rows that the source selects, over"
            " both transports, text and binary; a verification, a replay in place and a copy agree; no file"
            " has a plain value"
        ),
        "test_data_on_the_way.py::test_data_on_the_way",
    ),
    (
        "C203",
        "a filter on the lake's side: updates cross it, and it changes",
        "the lake has the rows for which the source says true; another filter needs a copy",
        "test_filtered_rows.py::test_filtered_rows",
    ),
    (
        "C204",
        "histories: several changes in a transaction, key moves and swaps, TRUNCATE, a copy",
        "as of each LSN they show what the source had; no two versions are in one place",
        "test_history_tables.py::test_histories_show_the_source_as_of_each_lsn",
    ),
    (
        "C205",
        "a person is erased from tables, histories, change logs, side tables and staged batches",
        "no byte of lake and staging area holds the person, and the pipeline goes on",
        "test_erasure.py::test_no_byte_holds_the_person",
    ),
    (
        "C206",
        (
            "two databases on two servers, each with a slot and a pipeline, write one table at the same time:"
            " upserted, as a history or with soft delete, beside a change log; tasks of all kinds are killed"
        ),
        (
            "each slice has the rows of its database, each of its batches once and in order, and its own LSN;"
            " a replay of one slice beside the other pipeline leaves the others"
        ),
        "tests/faults/test_two_databases.py::test_two_databases_at_once_under_kills",
    ),
    (
        "C206",
        (
            "batches of two slots are applied to one table at the same time, under random kills (Python"
            " staged them, without PostgreSQL)"
        ),
        "each source has its own rows there, and no other",
        "tests/apply/test_shared_tables.py::test_two_sources_at_once_under_kills",
    ),
    (
        "C206",
        (
            "two databases, each with a slot, a DAG and Spark drivers of its own, write one table at the same"
            " time, upserted and as a history; nobody kills them"
        ),
        "each slice has the rows of its database; a replay and a verification of one leave the other",
        "tests/airflow/test_two_pipelines.py::test_two_pipelines_at_once_into_one_table",
    ),
    (
        "C207",
        (
            "partitions that are published one by one become one table: rows move between them, one is new,"
            " one or all are truncated, one is detached"
        ),
        (
            "the lake has the rows of the partitioned table, over both transports, also with soft delete; a"
            " verification agrees; rows of a detached partition stay"
        ),
        "test_leaves_in_one_table.py::test_leaves_in_one_table",
    ),
    (
        "C162",
        "without a key, REPLICA IDENTITY FULL: old rows hold values of an added column that were never sent",
        "the rows are found; the columns that are known are equal",
        "test_unknown_values.py::test_a_row_is_found_although_nobody_told_what_a_column_holds_in_it",
    ),
    (
        "C162",
        'the same with `on_unknown_default="copy"`, of a column that the table has',
        "it is copied, and equal",
        "test_unknown_values.py::test_a_copy_brings_in_what_nobody_told",
    ),
    (
        "C170",
        "large subtransactions are rolled back: with their transaction, alone, and in prepared ones",
        (
            "nothing of them is staged and nothing else is missing, over both transports, with streaming on,"
            " off and `parallel`; the log says once that the server aborts transactions that it never sent"
        ),
        (
            "tests/capture/test_streaming.py::"
            "test_a_large_subtransaction_that_was_rolled_back_changes_nothing"
        ),
    ),
    (
        "C171",
        "random sessions: savepoints, large subtransactions, changes of shape, prepared transactions",
        "every way of reading stages the changes that version 1 sends, and they lead to the source's rows",
        "tests/capture/test_random_sessions.py::test_every_way_stages_the_same",
    ),
    (
        "C172",
        "the server breaks the protocol, over one transport or whenever it streams",
        "the batch is read another way, and a warning names it",
        (
            "tests/capture/source/test_hostile_server.py::"
            "test_a_stream_that_breaks_the_protocol_is_read_another_way"
        ),
    ),
)

#: Id, what happens, and why it does not run.
NOT_RUN = (
    ("C51", "FOR ALL TABLES EXCEPT", "new in PostgreSQL 19"),
    (
        "C69",
        "values of 64 MiB to 1 GB",
        "takes several GB of memory in server and reader; the server itself cannot send a row of 1 GB",
    ),
    (
        "C98",
        "a standby is promoted, with and without its slot",
        (
            "It needs a second server, so it has a test of its own. A standby with its slot (16 and later) is"
            " read while its primary is promoted, and then the standby itself:"
            f" `{_STANDBY}`."
            " What a run finds afterwards is tested, too. A promoted server kept its"
            f" slot: `{_TIMELINES}`. A slot is gone:"
            f" `{_CAPTURE}test_a_slot_that_is_gone_is_not_made_anew`. WAL ends before the checkpoint:"
            f" `{_CAPTURE}test_a_source_behind_the_lake_is_refused`"
        ),
    ),
    (
        "C99",
        "a timeline switch",
        (
            f"It is tested without the lake: `{_TIMELINES}` promotes a server. If the switch is past the"
            " checkpoint, the batch goes on. If it is before, `SourceChanged` stops the run"
        ),
    ),
    ("C100", "`wal_level` that follows the slots", "new in PostgreSQL 19"),
)
