"""The table of the logs of ended sandboxes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make it."""
    op.create_table(
        "logs",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("ended", sa.Float(53), nullable=False),
        sa.Column("text", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_logs_ended", "logs", ["ended"])


def downgrade() -> None:
    """Remove it."""
    op.drop_table("logs")
