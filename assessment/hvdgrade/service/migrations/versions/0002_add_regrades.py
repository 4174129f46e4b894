"""Add regrades."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "regrade",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "assignment_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("rules_sha256", sa.String(), nullable=False),
        sa.Column("applied", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["assignment_id"], ["assignment.id"], name=op.f("fk_regrade_assignment_id_assignment")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_regrade")),
    )
    with op.batch_alter_table("regrade", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_regrade_assignment_id"), ["assignment_id"], unique=False
        )

    with op.batch_alter_table("grading", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "regrade_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
            )
        )
        batch_op.create_index(batch_op.f("ix_grading_regrade_id"), ["regrade_id"], unique=False)
        batch_op.create_foreign_key(
            batch_op.f("fk_grading_regrade_id_regrade"), "regrade", ["regrade_id"], ["id"]
        )
        batch_op.drop_column("held")
