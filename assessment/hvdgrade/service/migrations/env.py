"""How alembic runs the revisions: in the transaction that `database.upgrade` has begun."""

from alembic import context

from hvdgrade.service.models import Base, Utc


def plain_type(kind: str, value: object, _context: object) -> str | bool:
    """Write the type of a moment without models.py, which later revisions may change."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(value, Utc) else False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite changes a table by copying it
    transactional_ddl=True,
    render_item=plain_type,
)
with context.begin_transaction():
    context.run_migrations()
