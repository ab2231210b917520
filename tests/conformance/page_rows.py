"""Lines of ``docs/conformance.md`` that no scenario says: tests of another form, and what does not run.

What is not here: the scenarios, and the page.
"""

from __future__ import annotations

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
        "C92",
        "a publication that was dropped, or made too late",
        "`PublicationMissing`, over both transports; slot, checkpoint and lake stay",
        "test_refusals.py::test_c92_a_dropped_publication_stops_the_run",
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
            "needs a standby; by design a slot that is missing, another system or WAL that ends before the"
            " checkpoint stop the run (`SlotNotFound`, `SourceChanged`)"
        ),
    ),
    ("C99", "a timeline switch", "needs a standby or a recovery; C95 shows the clean shutdown"),
    ("C100", "`wal_level` that follows the slots", "new in PostgreSQL 19"),
    (
        "C103",
        "a key under a nondeterministic collation",
        (
            "needs ICU, which the build of 18 that the tests use does not have; keys are compared as stored,"
            " see apply.md"
        ),
    ),
    (
        "C105",
        "a commit is paused between WAL and CLOG while a slot is created",
        "needs a server with injection points; mended in the server, so use a current minor version",
    ),
)
