"""Remove columns that nothing reads."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    with op.batch_alter_table("line_item") as line_item:
        line_item.drop_column("deployment")
    with op.batch_alter_table("worker") as worker:
        worker.drop_column("draining")
