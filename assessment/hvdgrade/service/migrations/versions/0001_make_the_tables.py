"""Make the tables. The names of constraints follow the naming convention in models.py."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "course",
        _key("id"),
        sa.Column("slug", sa.String(), nullable=False, unique=True),
        _text("title"),
    )
    op.create_table(
        "person",
        _key("id"),
        *_texts("name", "email"),
        _moment("removed_at", nullable=True),
    )
    op.create_table(
        "assignment",
        _key("id"),
        _row_of("course", index=True),
        sa.Column("slug", sa.String(), nullable=False, unique=True),
        *_texts("title", "profile"),
        sa.Column("ranks", sa.Integer(), nullable=False),
        *_texts("pool", "require_sandbox", "rules_sha256"),
        *(_moment(name, nullable=True) for name in ("opens", "due", "closes")),
        sa.Column("attempts", sa.Integer()),
        sa.Column("cooldown_s", sa.Double(), nullable=False),
        *_texts("counts", "feedback"),
        sa.Column("released", sa.Boolean(), nullable=False),
        sa.Column("limit_s", sa.Double(), nullable=False),
        sa.Column("board", sa.Boolean(), nullable=False),
    )
    op.create_table(
        "event",
        _key("id"),
        _moment("at"),
        _row_of("course", nullable=True, index=True),
        *_texts("who", "what", "on", "detail"),
    )
    op.create_table(
        "identity",
        sa.Column("issuer", sa.String(), primary_key=True),
        sa.Column("subject", sa.String(), primary_key=True),
        _row_of("person", index=True),
    )
    op.create_table(
        "member",
        _row_of("course", primary_key=True),
        _row_of("person", primary_key=True, index=True),
        _text("role"),
    )
    op.create_table(
        "board_entry",
        _row_of("assignment", primary_key=True),
        _row_of("person", primary_key=True),
        _text("pseudonym"),
    )
    op.create_table(
        "extension",
        _row_of("assignment", primary_key=True),
        _row_of("person", primary_key=True),
        *(_moment(name, nullable=True) for name in ("due", "closes")),
        sa.Column("attempts", sa.Integer()),
        *_texts("by", "reason"),
    )
    op.create_table(
        "line_item",
        _row_of("assignment", primary_key=True),
        *_texts("issuer", "client_id", "deployment", "url", "token_url"),
    )
    op.create_table(
        "submission",
        sa.Column("id", sa.String(), primary_key=True),
        _row_of("assignment", index=True),
        _row_of("person", index=True),
        sa.Column("number", sa.Integer(), nullable=False),
        *_texts("door", "key", "sha256"),
        sa.Column("script", sa.LargeBinary(), nullable=False),
        _moment("received"),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("replaced_by", sa.String(), sa.ForeignKey("submission.id")),
        sa.UniqueConstraint("assignment_id", "person_id", "number"),
        sa.UniqueConstraint("door", "key"),
    )
    op.create_table(
        "token",
        _key("id"),
        sa.Column("sha256", sa.String(), nullable=False, unique=True),
        _text("kind"),
        _row_of("person", nullable=True),
        _row_of("assignment", nullable=True),
        *_texts("door", "pool"),
        _moment("created"),
        *(_moment(name, nullable=True) for name in ("expires", "revoked")),
    )
    op.create_table(
        "appeal",
        _key("id"),
        _submission(),
        *_texts("text", "state", "answer", "by"),
        _moment("at"),
        _one_of_a_submission("one_open_appeal", "state = 'open'"),
    )
    op.create_table(
        "worker",
        _key("id"),
        _row_of("token"),
        *_texts("name", "pool"),
        sa.Column("slots", sa.Integer(), nullable=False),
        _text("version"),
        sa.Column("rules", sa.JSON(), nullable=False),
        *_texts("hardware", "tier"),
        sa.Column("gpus", sa.Integer(), nullable=False),
        _moment("seen"),
        sa.Column("draining", sa.Boolean(), nullable=False),
        _text("refused"),
        sa.UniqueConstraint("token_id", "name"),
    )
    op.create_table(
        "grading",
        _key("id"),
        _submission(),
        _text("reason"),
        sa.Column("rank", sa.Integer(), nullable=False),
        *_texts("pool", "state"),
        sa.Column("tries", sa.Integer(), nullable=False),
        _row_of("worker", nullable=True),
        _text("token_sha256"),
        _moment("lease_until", nullable=True),
        _moment("queued"),
        *(_moment(name, nullable=True) for name in ("started", "finished")),
        _text("progress"),
        sa.Column("document", sa.JSON()),
        _text("log"),
        sa.Column("verdict", sa.String()),
        sa.Column("score", sa.Double()),
        sa.Column("max_score", sa.Double()),
        sa.Column("seconds_to_target", sa.Double()),
        _text("rules_sha256"),
        sa.Column("held", sa.Boolean(), nullable=False),
        _text("error"),
        _one_of_a_submission("one_open_grading", "state IN ('queued', 'leased')"),
        sa.Index("order_of_the_queue", "state", "pool", "rank", "id"),
    )
    op.create_table(
        "grade",
        _row_of("assignment", primary_key=True),
        _row_of("person", primary_key=True),
        _row_of("grading", nullable=True),
        sa.Column("score", sa.Double()),
        sa.Column("max_score", sa.Double()),
        sa.Column("override", sa.Double()),
        *_texts("by", "reason"),
        sa.Column("version", sa.Integer(), nullable=False),
        _moment("changed"),
    )
    op.create_table(
        "post",
        _key("id"),
        sa.Column("assignment_id", sa.Integer(), nullable=False),
        sa.Column("person_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("score", sa.Double()),
        sa.Column("max_score", sa.Double()),
        _moment("timestamp"),
        _text("state"),
        sa.Column("tries", sa.Integer(), nullable=False),
        _moment("next_at"),
        _text("answer"),
        sa.ForeignKeyConstraint(
            ["assignment_id", "person_id"], ["grade.assignment_id", "grade.person_id"]
        ),
        sa.UniqueConstraint("assignment_id", "person_id", "version"),
        sa.Index("posts_to_send", "state", "next_at"),
    )


def _key(name: str) -> sa.Column:
    return sa.Column(name, NUMBER, primary_key=True)


def _text(name: str) -> sa.Column:
    return sa.Column(name, sa.String(), nullable=False)


def _texts(*names: str) -> list[sa.Column]:
    return list(map(_text, names))


def _moment(name: str, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _row_of(table: str, nullable: bool = False, **options: bool) -> sa.Column:
    """Return a column that names a row of another table."""
    key = sa.ForeignKey(f"{table}.id")
    return sa.Column(f"{table}_id", NUMBER, key, nullable=nullable, **options)


def _submission() -> sa.Column:
    key = sa.ForeignKey("submission.id")
    return sa.Column("submission_id", sa.String(), key, nullable=False, index=True)


def _one_of_a_submission(name: str, condition: str) -> sa.Index:
    """Return an index by which a submission has at most one row that meets a condition."""
    where = {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}
    return sa.Index(name, "submission_id", unique=True, **where)
