"""What the owner of a pipeline may choose about types: by kind of type, and by column.

A choice is made before anything is connected. It is part of the column's lake type in the manifest, so apply
sees one schema. ``mapping.py`` finds the type that follows from a choice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.lake_types import decimal_type
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

STRING = "string"
NUMERIC, JSON, UUID, COMPOSITE, INTERVAL, TIME = (
    "numeric",
    "json",
    "uuid",
    "composite",
    "interval",
    "time",
)
#: What may be chosen for each kind of type, in addition to ``string``; ``decimal`` is written
#: ``decimal(38,9)``.
CHOICES: Mapping[str, str] = {
    NUMERIC: "decimal",
    JSON: "variant",
    UUID: "uuid",
    COMPOSITE: "struct",
    INTERVAL: "struct",
    TIME: "micros",
}
_VARIANT_REFUSED = (
    "pyiceberg 0.12 cannot load a table that has a variant column, so neither the checkpoint's reader "
    "nor other engines would see the table; keep the text, and use parse_json in a query or a view."
)


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for one column."""

    #: The choice by kind of type. A kind that is missing is a ``string``.
    by_kind: Mapping[str, str] = field(default_factory=dict)
    #: The kinds that were chosen for this very column. Then the choice holds for all of them in the column,
    #: also for a numeric whose numbers fit a decimal anyway.
    own_kinds: frozenset[str] = frozenset()
    #: Whether the column keeps PostgreSQL's text, whatever its type is.
    is_text: bool = False

    def of(self, kind: str) -> str:
        """The choice for a kind of type."""
        return self.by_kind.get(kind, STRING)


NO_CHOICE = Choice()


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """The choices of a pipeline.

    :raises ConfigurationError: a kind or a choice is unknown, or does not go.
    """

    #: By kind of type, see ``CHOICES``.
    by_kind: Mapping[str, str] = field(default_factory=dict)
    #: By ``schema.table.column``; ``string`` keeps the text of any type.
    by_column: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, choice in self.by_kind.items():
            if kind not in CHOICES:
                raise ConfigurationError(
                    f"type_options has the unknown kind of type {kind!r}.",
                    advice=f"choose from {', '.join(CHOICES)}.",
                )
            if choice != STRING and kind not in _kinds(choice, f"type_options[{kind!r}]"):
                raise ConfigurationError(
                    f"type_options[{kind!r}] is {choice!r}.",
                    advice=f"use {STRING!r} or {_spelled(kind)!r}.",
                )
        for column, choice in self.by_column.items():
            if choice != STRING:
                _kinds(choice, f"column_types[{column!r}]")

    def of(self, table: str, column: str) -> Choice:
        """What was chosen for a column.

        :param table: ``schema.table``.
        """
        name = f"{table}.{column}"
        chosen = self.by_column.get(name)
        if chosen is None:
            return Choice(self.by_kind)
        if chosen == STRING:
            return Choice(is_text=True)
        kinds = _kinds(chosen, name)
        return Choice({**self.by_kind, **dict.fromkeys(kinds, chosen)}, kinds)

    @property
    def wants_attributes(self) -> bool:
        """Whether some composites become structs."""
        return CHOICES[COMPOSITE] in {self.by_kind.get(COMPOSITE), *self.by_column.values()}


def _kinds(choice: str, argument: str) -> frozenset[str]:
    """The kinds of type for which a choice is made, if it is not ``string``.

    :raises ConfigurationError: it is no choice.
    """
    if choice == CHOICES[JSON]:
        raise ConfigurationError(f"{argument} is 'variant'.", advice=_VARIANT_REFUSED)
    word = "decimal" if decimal_type(choice) else choice
    kinds = frozenset(kind for kind, each in CHOICES.items() if each == word)
    if not kinds or choice == "decimal":
        known = ", ".join(repr(_spelled(kind)) for kind in (NUMERIC, UUID, COMPOSITE, TIME))
        raise ConfigurationError(
            f"{argument} is {choice!r}.",
            advice=f"use {STRING!r}, {known}; a decimal has a precision of 1 to 38.",
        )
    return kinds


def _spelled(kind: str) -> str:
    return "decimal(38,9)" if kind == NUMERIC else CHOICES[kind]
