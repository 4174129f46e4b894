"""Add regrades. The names of constraints follow the naming convention in models.py."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Apply the revision."""
    assignment = sa.ForeignKey("assignment.id")
    op.create_table(
        "regrade",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("assignment_id", NUMBER, assignment, nullable=False, index=True),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("rules_sha256", sa.String(), nullable=False),
        sa.Column("applied", sa.DateTime(timezone=True)),
    )
    with op.batch_alter_table("grading") as grading:
        grading.add_column(sa.Column("regrade_id", NUMBER))
        grading.create_index("ix_grading_regrade_id", ["regrade_id"])
        grading.create_foreign_key(
            "fk_grading_regrade_id_regrade", "regrade", ["regrade_id"], ["id"]
        )
        grading.drop_column("held")
