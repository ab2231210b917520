"""Airflow's hook for the source database: connection parameters, and facts about slot and publication.

It uses a connection of type ``postgres``, and ``PostgresHook``, which knows the connection's extras and IAM
tokens. It reads only catalogs. ``capture/`` reads and moves the slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.airflow_versions import BaseHook, mask_secret
from airflow_provider_pgoutput.batch.layout import check_slot_name
from airflow_provider_pgoutput.errors import PgoutputError
from airflow_provider_pgoutput.hooks import default_connections
from airflow_provider_pgoutput.hooks.connections import (
    DIRECT_CONN_ID,
    get_connection,
    libpq_parameters,
    libpq_string,
    secret_values,
)

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator, Sequence
    from typing import LiteralString

    from psycopg import Connection as PsycopgConnection

    from airflow_provider_pgoutput.capture.slot.facts import SlotStatus
    from airflow_provider_pgoutput.capture.source.publications import Publication

# RDS and Aurora give the right by membership in a role, and leave the attribute to themselves:
# https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/PostgreSQL.Concepts.General.FeatureSupport.LogicalReplication.html
_ABILITIES_SQL = """
SELECT pg_catalog.current_setting('server_version'),
       pg_catalog.current_setting('server_version_num')::pg_catalog.int4 / 10000,
       pg_catalog.current_setting('wal_level'),
       r.rolreplication OR r.rolsuper
       OR EXISTS (SELECT FROM pg_catalog.pg_roles AS given
                   WHERE given.rolname = 'rds_replication' AND pg_catalog.pg_has_role(given.oid, 'MEMBER'))
  FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user
"""


class _FreshParameters(Mapping[str, Any]):
    """Parameters of libpq. Each reading asks Airflow for them again."""

    def __init__(self, hook: PgoutputHook) -> None:
        self._hook = hook

    def items(self) -> ItemsView[str, Any]:
        """All parameters, as they are at one moment."""
        from psycopg.conninfo import conninfo_to_dict

        return conninfo_to_dict(self._hook.conninfo()).items()

    def __getitem__(self, name: str) -> Any:
        return dict(self.items())[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self.items()))

    def __len__(self) -> int:
        return len(self.items())


class PgoutputHook(BaseHook):
    """Connect to the source, and describe its slots and publications.

    :param postgres_conn_id: a connection of type ``postgres``. Its extras are libpq parameters
        (``{"sslrootcert": "/etc/ssl/db-ca.pem"}``). With ``{"iam": true}`` AWS or Azure is asked for a token.
        If it leads to a connection pooler, ``{"direct_conn_id": "..."}`` names a connection to the server
        itself.
    :param database: another database of the same server; None: the database of the connection.
    """

    conn_name_attr = "postgres_conn_id"
    default_conn_name = default_connections.POSTGRES
    conn_type = "postgres"
    hook_name = "PostgreSQL logical replication"

    def __init__(
        self, postgres_conn_id: str = default_conn_name, *, database: str | None = None
    ) -> None:
        super().__init__()
        self.postgres_conn_id = postgres_conn_id
        self.database = database

    def conninfo(self) -> str:
        """Connection parameters as one libpq string, for psycopg and for ADBC. The string is a secret.

        :raises ConnectionNotFound: Airflow does not give the connection.
        :raises ConfigurationError: it has another type, or an extra that libpq does not know.

        Source: https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING
        """
        from airflow.providers.postgres.hooks.postgres import PostgresHook

        connection = get_connection(self.postgres_conn_id)
        extra = connection.extra_dejson
        parameters = libpq_parameters(connection, extra)
        if extra.get("iam"):
            login, token, port = PostgresHook(connection=connection).get_iam_token(connection)
            parameters |= {"user": login, "password": token, "port": str(port)}
        if self.database:
            parameters["dbname"] = self.database
        for secret in secret_values(parameters):
            mask_secret(secret)
        conninfo = libpq_string(parameters, self.postgres_conn_id)
        mask_secret(conninfo)
        return conninfo

    def direct(self) -> PgoutputHook:
        """The hook of the server itself, past a connection pooler. Without ``direct_conn_id``: this hook.

        :raises ConnectionNotFound: Airflow does not give the connection.
        """
        named = get_connection(self.postgres_conn_id).extra_dejson.get(DIRECT_CONN_ID)
        return PgoutputHook(str(named), database=self.database) if named else self

    def session_parameters(self) -> str | Mapping[str, Any]:
        """Connection parameters for a task that opens sessions over hours.

        With IAM each session needs a new token, because the server takes a token only for some minutes (15 on
        AWS). So with IAM this returns parameters that bring a new token whenever they are read. Otherwise it
        returns the string of ``conninfo``.

        :raises ConnectionNotFound: Airflow does not give the connection.
        :raises ConfigurationError: as in ``conninfo``.
        """
        if get_connection(self.postgres_conn_id).extra_dejson.get("iam"):
            return _FreshParameters(self)
        return self.conninfo()

    def get_conn(self, *, replication: bool = False) -> PsycopgConnection[tuple[Any, ...]]:
        """Open a session in autocommit mode. It pins every setting that changes how a value is written.

        :param replication: open a walsender session, which takes ``START_REPLICATION``.
        :raises SourceUnavailable: the source does not answer.
        :raises ConfigurationError: the source refuses the login.
        """
        from airflow_provider_pgoutput.capture.source.session import connect

        return connect(self.conninfo(), replication=replication)

    def _query(self, query: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
        from airflow_provider_pgoutput.capture.source.errors import translated

        with translated(), self.get_conn() as session:
            return session.execute(query, values).fetchall()

    def slot(self, slot_name: str) -> SlotStatus:
        """Describe the slot as it is now. The slot need not exist.

        :raises ConfigurationError: ``slot_name`` cannot be the name of a slot.
        """
        from airflow_provider_pgoutput.capture.slot.replication_slot import read_slot_status

        check_slot_name(slot_name)
        with self.get_conn() as session:
            return read_slot_status(session, slot_name)

    def publications(self, names: Sequence[str]) -> tuple[Publication, ...]:
        """Describe the publications, in the order of ``names``.

        :raises PublicationMissing: one of them does not exist. PostgreSQL 18 itself only warns, and sends
            nothing.
        """
        from airflow_provider_pgoutput.capture.source.publications import read_publications

        with self.get_conn() as session:
            return read_publications(session, names)

    def published_tables(self, publication_name: str) -> tuple[str, ...]:
        """The tables of a publication as ``schema.table``, sorted. Empty: it does not exist, or has none."""
        from airflow_provider_pgoutput.capture.source.publications import read_table_names

        with self.get_conn() as session:
            return read_table_names(session, publication_name)

    def test_connection(self) -> tuple[bool, str]:
        """Say whether the source's ``wal_level`` allows a slot, and whether this role may replicate.

        Rights on tables are not checked here. A run checks them before it creates a slot for a copy.
        """
        from airflow_provider_pgoutput.capture.slot.replication_slot import allows_slots

        try:
            ((version, major, wal_level, may_replicate),) = self._query(_ABILITIES_SQL)
        except PgoutputError as error:
            return False, str(error)
        if not allows_slots(wal_level, major):
            return False, f"PostgreSQL {version} has wal_level={wal_level}; set it to logical."
        if not may_replicate:
            return False, (
                "The role lacks REPLICATION: ALTER ROLE ... REPLICATION, or on RDS and Aurora"
                " GRANT rds_replication TO ..."
            )
        return True, f"PostgreSQL {version}, wal_level={wal_level}, the role may replicate."
