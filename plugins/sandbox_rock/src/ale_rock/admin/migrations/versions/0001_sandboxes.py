"""The table of sandboxes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make it."""
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("image", sa.Text),
        sa.Column("memory", sa.Text),
        sa.Column("disk", sa.Text),
        sa.Column("user", sa.Text),
        sa.Column("experiment", sa.Text),
        sa.Column("namespace", sa.Text),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("idle_s", sa.Float(53)),
        sa.Column("delete_s", sa.Float(53)),
        sa.Column("lifetime_s", sa.Float(53)),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("worker", sa.Text),
        sa.Column("host_name", sa.Text),
        sa.Column("host_ip", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("code", sa.Integer),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("started", sa.Float(53)),
        sa.Column("stopped", sa.Float(53)),
        sa.Column("deleted", sa.Float(53)),
        sa.Column("need", sa.Text, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("history", sa.Text, nullable=False),
    )
    op.create_index("ix_sandboxes_state", "sandboxes", ["state"])
    op.create_index("ix_sandboxes_stopped", "sandboxes", ["stopped"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("sandboxes")
