"""Turns options of a Spark job into values. Templates render them to text.

``batch/jobs.py`` has the options, with their defaults. It checks the values.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.jobs import Job, TableOptions, TunedJob
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.tasks import arguments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider_pgoutput.tasks.arguments import Converter


def plan_fields(given: Any) -> dict[str, Any]:
    """Fields of ``TunedJob`` from ``plan_options``. A number without a value keeps its default.

    :raises ConfigurationError: an option does not exist, or has a value of another type.
    """
    return _converted(arguments.mapping(given, "plan_options"), PLAN_OPTIONS, "plan_options")


def table_options(given: Any, name: str = "table_options") -> dict[str, TableOptions]:
    """The options of single tables, by the tables' names at the source.

    :raises ConfigurationError: an option does not exist, or has a value of another type.
    """
    found = arguments.mapping(given, name)
    for table in found:
        if "." not in table:
            raise ConfigurationError(
                f"{name} names no table of a source: {table}.",
                advice="spell it schema.table.",
            )
    return {table: _of_table(options, f"{name}[{table}]") for table, options in found.items()}


def _of_table(given: Any, name: str) -> TableOptions:
    return TableOptions(**_converted(arguments.mapping(given, name), _TABLE_OPTIONS, name))


def _converted(
    options: Mapping[str, Any], converters: Mapping[str, Converter], name: str
) -> dict[str, Any]:
    if unknown := sorted(options.keys() - converters):
        raise ConfigurationError(
            f"{name} has an option that does not exist: {', '.join(unknown)}.",
            advice=f"choose from {', '.join(sorted(converters))}.",
        )
    found = {each: converters[each](value, f"{name}.{each}") for each, value in options.items()}
    return {each: value for each, value in found.items() if value is not None}


def _optional_flag(given: Any, name: str) -> bool | None:
    return None if arguments.optional_text(given) is None else arguments.flag(given, name)


def _transforms(given: Any, name: str) -> tuple[str, ...]:
    # ``bucket(4, id)`` has a comma of its own. So a text is one transform, or a list as JSON.
    if isinstance(given, str) and not given.lstrip().startswith("["):
        only = arguments.optional_text(given)
        given = [only] if only else None
    return arguments.optional_text_list(given, name)


def _properties(given: Any, name: str) -> dict[str, Any]:
    return {key: _property(value) for key, value in arguments.mapping(given, name).items()}


def _property(value: Any) -> Any:
    """A number or a boolean as Iceberg spells it. The job's check judges anything else."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


#: By the type of an option: what turns the text of a template into its value.
_CONVERTERS: Mapping[str, Converter] = {
    **arguments.CONVERTERS,
    "bool | None": _optional_flag,
    "dict[str, str]": _properties,
    "tuple[str, ...]": _transforms,
}


def _converters(fields: Iterable[dataclasses.Field[Any]]) -> dict[str, Converter]:
    return {each.name: _CONVERTERS[str(each.type)] for each in fields}


_OF_ALL_JOBS = {each.name for each in dataclasses.fields(Job)}
#: The options that ``plan_options`` can have.
PLAN_OPTIONS = _converters(
    each for each in dataclasses.fields(TunedJob) if each.name not in _OF_ALL_JOBS
)
_TABLE_OPTIONS = _converters(dataclasses.fields(TableOptions))
