"""How a proof hashes a masked column: the server masks the value first, the lake has it masked already.

No SQL text has the secret of hashes. ``tell_secret`` passes the two blocks with which an HMAC begins as bind
parameters, and keeps them in settings of the transaction. The blocks are as secret as the secret itself, and
a server that logs parameters logs them.

Source: https://www.rfc-editor.org/rfc/rfc2104 (HMAC);
https://www.postgresql.org/docs/current/runtime-config-custom.html (settings of one's own)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from psycopg import sql

from airflow_provider_pgoutput.capture.source.copy_form import printed
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.capture.types.registry import row_of
from airflow_provider_pgoutput.capture.types.type_info import base_type
from airflow_provider_pgoutput.masks import (
    HASH,
    REDACT,
    REDACTED_TEXT,
    TRUNCATE,
    Mask,
    hmac_blocks,
    is_hash,
)
from airflow_provider_pgoutput.proof.forms.scalar import string_form

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo
    from airflow_provider_pgoutput.proof.forms.scalar import Form, HashTerms, Sql

_INNER: Final = "pgoutput.mask_inner"
_OUTER: Final = "pgoutput.mask_outer"
#: ``textsend`` gives the bytes that a client gets. Capture hashes the same bytes.
_HASH_SQL: Final = (
    "pg_catalog.encode(pg_catalog.sha256({outer} OPERATOR(pg_catalog.||)"
    " pg_catalog.sha256({inner} OPERATOR(pg_catalog.||) pg_catalog.textsend({text}))), 'hex')"
)


def masked_form(
    recorded: str, type_oid: int, types: Mapping[int, TypeInfo], terms: HashTerms
) -> Form:
    """The form of a column whose values in the lake are masked texts.

    :param recorded: a ``hash``, ``redact`` or ``truncate``, see ``Mask.recorded``. For a hash the session
        needs ``tell_secret``.
    :param type_oid: of the column at the source.
    """
    row = row_of(base_type(type_oid, types))
    mask = Mask(HASH) if is_hash(recorded) else Mask.parse(recorded, "")
    return string_form(lambda value: _masked(mask, printed(value, row)), terms)


def tell_secret(session: Session, secret: bytes) -> None:
    """Give a session what it needs for hashes with this secret.

    :param session: in a transaction. The settings end with it: a pooler may give the session to others later.
    """
    with translated():
        for name, block in zip((_INNER, _OUTER), hmac_blocks(secret), strict=True):
            session.execute("SELECT pg_catalog.set_config(%s, %s, true)", (name, block.hex()))


def _masked(mask: Mask, text: Sql) -> Sql:
    if mask.kind == HASH:
        return sql.SQL(_HASH_SQL).format(outer=_block(_OUTER), inner=_block(_INNER), text=text)
    if mask.kind == TRUNCATE:
        return sql.SQL('pg_catalog."left"({}, {})').format(text, sql.Literal(mask.length))
    assert mask.kind == REDACT, "other masks leave nothing to compare"
    return sql.SQL("CASE WHEN {} IS NOT NULL THEN {} END").format(text, sql.Literal(REDACTED_TEXT))


def _block(setting: str) -> Sql:
    return sql.SQL("pg_catalog.decode(pg_catalog.current_setting({}), 'hex')").format(
        sql.Literal(setting)
    )
