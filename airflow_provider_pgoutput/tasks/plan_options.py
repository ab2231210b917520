"""Options of a job as a DAG gives them: templates render them to text, and a job holds what they mean.

What is not here: which values go together, and which are in range (``batch/jobs.py``).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.tasks import arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "format_version": arguments.whole_number,
    "write_mode": arguments.required_text,
    "tag_retention_days": arguments.whole_number,
    "parallel_tables": arguments.whole_number,
    "drop_columns": arguments.flag,
    "keep_retyped_columns": arguments.flag,
}


def plan_fields(given: Any) -> dict[str, Any]:
    """Fields of ``WriteJob`` from ``plan_options``. A number without a value keeps its default.

    :raises ConfigurationError: when one does not exist, or is something else than it has to be.
    """
    options = arguments.mapping(given, "plan_options")
    _refuse_unknown(options, _FIELDS, "plan_options")
    found = {name: _FIELDS[name](value, f"plan_options.{name}") for name, value in options.items()}
    return {name: value for name, value in found.items() if value is not None}


def table_options(given: Mapping[str, Any]) -> dict[str, TableOptions]:
    """What the user says about single tables, by the names of their sources.

    :raises ConfigurationError: when an option does not exist, or is something else than it has to be.
    """
    for table in given:
        if "." not in table:
            raise ConfigurationError(
                f"table_options names no table of a source: {table}.",
                advice="spell it schema.table.",
            )
    return {
        table: _of_table(options, f"table_options[{table}]") for table, options in given.items()
    }


def _of_table(given: Any, name: str) -> TableOptions:
    options = arguments.mapping(given, name)
    _refuse_unknown(options, {each.name for each in dataclasses.fields(TableOptions)}, name)
    properties = arguments.mapping(options.get("properties"), f"{name}.properties")
    return TableOptions(
        target=arguments.optional_text(options.get("target")),
        mode=arguments.optional_text(options.get("mode")),
        properties={key: _property(value) for key, value in properties.items()},
        partitioned_by=_transforms(options.get("partitioned_by"), f"{name}.partitioned_by"),
        keep_retyped_columns=_optional_flag(
            options.get("keep_retyped_columns"), f"{name}.keep_retyped_columns"
        ),
    )


def _optional_flag(given: Any, name: str) -> bool | None:
    return None if arguments.optional_text(given) is None else arguments.flag(given, name)


def _transforms(given: Any, name: str) -> tuple[str, ...]:
    # A transform has commas of its own, so a text is one of them or JSON.
    if isinstance(given, str) and not given.lstrip().startswith("["):
        only = arguments.optional_text(given)
        given = [only] if only else None
    return arguments.optional_text_list(given, name)


def _property(value: Any) -> Any:
    """A number or a yes or no as Iceberg spells it; anything else is for the job to judge."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


def _refuse_unknown(
    options: Mapping[str, Any], known: Mapping[str, Any] | set[str], name: str
) -> None:
    if unknown := sorted(options.keys() - known):
        raise ConfigurationError(
            f"{name} has an option that does not exist: {', '.join(unknown)}.",
            advice=f"choose from {', '.join(sorted(known))}.",
        )
