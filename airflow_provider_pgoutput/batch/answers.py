"""The answers to one question: what is done about something that the stream does not tell.

Each argument ``on_...`` of an operator asks it about one kind of trouble. A word means the same in all of
them.
"""

from __future__ import annotations

from airflow_provider_pgoutput.errors import ConfigurationError

#: An error stops the task, or refuses one table. It names the ways on.
FAIL = "fail"
#: The run goes on without the rows or values that are in question, and logs a warning.
IGNORE = "ignore"
#: The table is copied again in the same run. ``on_slot_lost`` copies all tables.
COPY = "copy"
#: Of ``on_slot_lost`` only: rows of the lake that differ from the source are read again. A table whose rows
#: cannot be compared is copied.
DIFFERENCE = "difference"
#: Of ``on_table_refused`` only: the table is left as it is, and the others go on. Another argument that says
#: ``fail`` about one table refuses that table; then ``on_table_refused`` decides.
SET_ASIDE = "set_aside"
#: Of ``on_row_refused`` only: the row is not written, and noted in a table. The table's other rows go on.
QUARANTINE = "quarantine"
#: Of ``on_unknown_default`` only: older rows get the default that the column has now.
DEFAULT = "default"

#: Of ``on_difference`` only: the report says it, and the task succeeds.
SUCCEED = "succeed"
#: Of ``on_difference`` only: rows that differ are read from the source again.
REPAIR = "repair"
#: Of ``on_limit_passed`` only: the log has a warning, and the task succeeds.
WARN = "warn"

#: By argument: its answers. The first is the one that is taken when nothing is said.
ANSWERS = {
    "on_difference": (FAIL, SUCCEED, REPAIR),
    "on_limit_passed": (FAIL, WARN),
    "on_new_table": (COPY, IGNORE, FAIL),
    "on_recreated_table": (FAIL, COPY),
    "on_row_refused": (FAIL, QUARANTINE),
    "on_slot_lost": (FAIL, COPY, DIFFERENCE),
    "on_table_refused": (SET_ASIDE, FAIL),
    "on_type_change": (FAIL, COPY),
    "on_unknown_default": (IGNORE, DEFAULT, COPY),
    "on_unsure_column": (FAIL, IGNORE, COPY),
}


def check_answer(argument: str, answer: str) -> str:
    """Return an answer that its question has.

    :param argument: one of ``ANSWERS``.
    :raises ConfigurationError: the question has no such answer.
    """
    *others, last = map(repr, ANSWERS[argument])
    if answer not in ANSWERS[argument]:
        raise ConfigurationError(
            f"Unknown {argument} {answer!r}.", advice=f"use {', '.join(others)} or {last}."
        )
    return answer
