"""The canonical form of each type, which SQL and Arrow hash so that both get the same number.

Start here: ``form_of``. What a form hashes is the value of the lake. For most types that is PostgreSQL's own
text. A value that the lake cannot hold is NULL in the lake, so it is hashed as NULL at the source as well.
The lake type decides the form. ``capture/types/registry.py`` has the SQL that makes the lake's value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from airflow_provider_pgoutput.batch.lake_types import (
    decimal_type,
    list_element,
    map_entry,
    struct_fields,
)
from airflow_provider_pgoutput.capture.source.copy_form import printed
from airflow_provider_pgoutput.capture.types.mapping import lake_type as own_lake_type
from airflow_provider_pgoutput.capture.types.registry import STRING, row_of
from airflow_provider_pgoutput.capture.types.type_info import base_type
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.proof.forms.nested import ListForm, MapForm, StructForm
from airflow_provider_pgoutput.proof.forms.scalar import SIMPLE, decimal_form, string_form, template

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo
    from airflow_provider_pgoutput.proof.forms.scalar import Form, HashTerms, Sql


def form_of(
    lake_type: str,
    type_oid: int,
    type_modifier: int,
    types: Mapping[int, TypeInfo],
    terms: HashTerms,
) -> Form:
    """The form of a column.

    :param lake_type: as in ``Column.lake_type``.
    :param type_oid: of the column's type at the source.
    :param types: users' types by OID, with their attributes.
    :raises ConfigurationError: the lake type is unknown, or is not made from this type.
    """
    info = base_type(type_oid, types)
    row = row_of(info)
    in_lake = row.in_lake[0]
    if lake_type == STRING:
        return string_form(lambda value: printed(value, row), terms)
    if (element := list_element(lake_type)) is not None:
        return _list(element, info, type_modifier, types, terms)
    if map_entry(lake_type) is not None:
        assert info is not None, "hstore has a schema"
        text = string_form(lambda value: value, terms)
        return MapForm(info.schema_name, text, terms.functions)
    if (fields := struct_fields(lake_type)) is not None:
        return _struct(fields, info, types, terms)
    if (digits := decimal_type(lake_type)) is not None:
        is_own = own_lake_type(type_oid, type_modifier, types) == lake_type
        return decimal_form(*digits, in_lake, terms, is_own=is_own)
    make = SIMPLE.get(lake_type)
    if make is None:
        raise ConfigurationError(
            f"Lake type {lake_type!r} has no digest.", advice="stage the table again."
        )
    return make(in_lake, terms)


def _list(
    element: str,
    info: TypeInfo | None,
    type_modifier: int,
    types: Mapping[int, TypeInfo],
    terms: HashTerms,
) -> Form:
    row = row_of(info)
    element_oid = 0 if info is None else info.element_oid
    if not element_oid:
        # A vector.
        return ListForm(
            SIMPLE[element]("{}", terms), row.in_lake[0], null_is_empty=False,
            functions=terms.functions, has_dimensions=False,
        )  # fmt: skip
    inner = form_of(element, element_oid, type_modifier, types, terms)
    return ListForm(
        inner, "{}", null_is_empty=isinstance(inner, StructForm), functions=terms.functions
    )


def _struct(
    fields: Sequence[tuple[str, str]],
    info: TypeInfo | None,
    types: Mapping[int, TypeInfo],
    terms: HashTerms,
) -> Form:
    attributes = () if info is None else info.attributes
    row = row_of(info)
    if not attributes:
        made = [
            (template(part), SIMPLE[kind]("{}", terms))
            for part, (_, kind) in zip(row.in_lake, fields, strict=True)
        ]
        return StructForm(tuple(made), terms.functions, row.held)
    by_name = {each.name: each for each in attributes}
    found: list[tuple[Callable[[Sql], Sql], Form]] = []
    for name, kind in fields:
        attribute = by_name.get(name)
        if attribute is None:
            raise ConfigurationError(
                f"Attribute {name!r} of a composite is gone at the source.",
                advice="run the pipeline, so that the lake follows; then prove the table.",
            )
        form = form_of(kind, attribute.type_oid, attribute.type_modifier, types, terms)
        found.append((_attribute(name), form))
    return StructForm(tuple(found), terms.functions)


def _attribute(name: str) -> Callable[[Sql], Sql]:
    return lambda value: sql.SQL("({}).{}").format(value, sql.Identifier(name))
