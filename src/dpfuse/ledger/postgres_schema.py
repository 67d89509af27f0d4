"""The tables of a ledger in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpfuse.errors import LedgerRefused
from dpfuse.ledger.head import MISSING_REMEDY
from dpfuse.ledger.terms import Terms

if TYPE_CHECKING:
    from psycopg import Connection

    from dpfuse.ledger.postgres_store import Address

SCHEMA_VERSION = 2
# As in SQLite (see `store`), except that the key begins with the stream, by which rows are looked up.
# The version is read before anything else. {budget} is at most 2^61: a sum of two accounts stays below 2^63.
_SCHEMA = """
CREATE TABLE {schema}.version (number INTEGER NOT NULL);
CREATE TABLE {schema}.terms (content TEXT NOT NULL);
CREATE TABLE {schema}.commits (number BIGINT PRIMARY KEY, tip BYTEA NOT NULL, debited TEXT NOT NULL);
CREATE TABLE {schema}.releases (
    stream TEXT COLLATE "C" NOT NULL,
    step BIGINT NOT NULL CHECK (step >= 1),
    release BYTEA NOT NULL,
    fusion_weight BIGINT NOT NULL CHECK (fusion_weight >= 0),
    cost BIGINT CHECK (cost >= 0),
    budget_left BIGINT CHECK (budget_left BETWEEN 0 AND {budget}),
    hash BYTEA NOT NULL,
    commit_number BIGINT NOT NULL,
    PRIMARY KEY (stream, step)
);
CREATE TABLE {schema}.accounts (
    sensor BIGINT PRIMARY KEY CHECK (sensor >= 0),
    spent BIGINT NOT NULL CHECK (spent BETWEEN 0 AND {budget})
) WITH (fillfactor = 70);
CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE integrity_constraint_violation USING MESSAGE = 'a ledger is append-only'; END $$;
CREATE FUNCTION {schema}.follow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF EXISTS (SELECT 1 FROM {schema}.releases WHERE stream = new.stream AND step > new.step) THEN
        RAISE integrity_constraint_violation USING MESSAGE = 'a step is behind the last one';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER releases_only_follow BEFORE INSERT ON {schema}.releases
    FOR EACH ROW EXECUTE FUNCTION {schema}.follow();
CREATE TRIGGER accounts_only_grow BEFORE UPDATE ON {schema}.accounts
    FOR EACH ROW WHEN (new.spent < old.spent OR new.sensor <> old.sensor) EXECUTE FUNCTION {schema}.refuse();
CREATE TRIGGER accounts_stay BEFORE DELETE ON {schema}.accounts FOR EACH ROW EXECUTE FUNCTION {schema}.refuse();
CREATE TRIGGER accounts_are_kept BEFORE TRUNCATE ON {schema}.accounts EXECUTE FUNCTION {schema}.refuse();
"""
_APPEND_ONLY = """
CREATE TRIGGER {table}_stay BEFORE UPDATE OR DELETE ON {schema}.{table}
    FOR EACH ROW EXECUTE FUNCTION {schema}.refuse();
CREATE TRIGGER {table}_are_kept BEFORE TRUNCATE ON {schema}.{table} EXECUTE FUNCTION {schema}.refuse();
"""


def make_tables(connection: Connection[Any], address: Address, terms: Terms) -> None:
    """Write an empty ledger, in one transaction."""
    names = {"schema": address.quoted}
    tables = ("version", "terms", "commits", "releases")
    schema = _SCHEMA.format(budget=terms.mechanism.budget, **names)
    with connection.transaction():
        if not connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", (address.quoted,)).fetchall()[0][0]:
            connection.execute(f"CREATE SCHEMA {address.quoted}")
        connection.execute(schema + "".join(_APPEND_ONLY.format(table=table, **names) for table in tables))
        connection.execute("INSERT INTO version VALUES (%s)", (SCHEMA_VERSION,))
        connection.execute("INSERT INTO terms VALUES (%s)", (terms.to_json(),))


def has_ledger(connection: Connection[Any], address: Address) -> bool:
    """Whether the schema holds the tables of a ledger."""
    query = "SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'version'"
    return connection.execute(query, (address.schema,)).fetchall() != [(0,)]


def check_version(connection: Connection[Any], address: Address) -> None:
    # By its full name: PostgreSQL ignores a schema of the search path that this role may not use.
    query = f"SELECT number FROM {address.quoted}.version"
    found = has_ledger(connection, address) and connection.execute(query).fetchall()
    if not found:
        raise LedgerRefused(f"{address} holds no ledger in schema {address.schema}; {MISSING_REMEDY}")
    if found != [(SCHEMA_VERSION,)]:
        raise LedgerRefused(
            f"{address} has ledger version {found[0][0]}, this dpfuse reads {SCHEMA_VERSION}; use the dpfuse that "
            f"wrote it"
        )
