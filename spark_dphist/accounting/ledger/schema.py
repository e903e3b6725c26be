"""The tables of a ledger, the same on SQLite and PostgreSQL. Column by column: docs/ledger.md."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)

from spark_dphist.accounting.composition import Rho


class RhoText(TypeDecorator[Rho]):
    """An exact amount as decimal text: no database rounds it, and a person can read it."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Rho | None, dialect: Dialect) -> str | None:
        """Write the amount as text."""
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Rho | None:
        """Read it back, unchanged."""
        return None if value is None else Rho.upper(value)


class UtcText(TypeDecorator[datetime]):
    """A moment in UTC as ISO 8601 text, which sorts by time on both databases."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        """Write the moment in UTC."""
        if value is None:
            return None
        return value.astimezone(UTC).isoformat(timespec="microseconds")

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:
        """Read it back with its time zone."""
        return None if value is None else datetime.fromisoformat(value)


metadata = MetaData()

ledger_schema = Table(
    "ledger_schema",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
)

data_set = Table(
    "ledger_data_set",
    metadata,
    Column("name", Text, primary_key=True),
    Column("privacy_unit", Text, nullable=False),
    Column("rho_cap", RhoText),
    Column("epsilon_cap", Double),
    Column("delta", Double),
    Column("epsilon_rho_cap", RhoText),
    Column("rho_spent", RhoText, nullable=False),
    Column("created_at", UtcText, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("selection_delta_cap", RhoText, nullable=False),
    Column("selection_delta_spent", RhoText, nullable=False),
)

cap_point = Table(
    "ledger_cap_point",
    metadata,
    Column("data_set", Text, ForeignKey("ledger_data_set.name"), primary_key=True),
    Column("at_least", BigInteger, primary_key=True, autoincrement=False),
    Column("rho_cap", RhoText, nullable=False),
    Column("rho_spent", RhoText, nullable=False),
)

release = Table(
    "ledger_release",
    metadata,
    Column("release_id", Text, primary_key=True),
    Column("data_set", Text, ForeignKey("ledger_data_set.name"), nullable=False),
    Column("state", Text, nullable=False),
    Column("rho", RhoText, nullable=False),
    Column("rho_at_least", Text, nullable=False),
    Column("noise", Text, nullable=False),
    Column("pure_epsilon", Double),
    Column("mechanism", Text, nullable=False),
    Column("parameters", Text, nullable=False),
    Column("privacy_unit", Text, nullable=False),
    Column("records_per_unit", BigInteger, nullable=False),
    Column("policy", Text, nullable=False),
    Column("software", Text, nullable=False),
    Column("token_sha256", Text, nullable=False),
    Column("reserved_at", UtcText, nullable=False),
    Column("reserved_by", Text, nullable=False),
    Column("ended_at", UtcText),
    Column("ended_by", Text),
    Column("output", Text),
    Column("delta", RhoText, nullable=False),
)

event = Table(
    "ledger_event",
    metadata,
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("at", UtcText, nullable=False),
    Column("by_whom", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("data_set", Text, nullable=False),
    Column("release_id", Text),
    Column("detail", Text, nullable=False),
)
