"""What a restart needs, and the table of images that were made of sandboxes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TIMES, TEXTS = ("archive_s", "archived"), ("snapshot", "kept_order")


def upgrade() -> None:
    """Make them."""
    for name in TIMES:
        op.add_column("sandboxes", sa.Column(name, sa.Float(53)))
    for name in TEXTS:
        op.add_column("sandboxes", sa.Column(name, sa.Text))
    op.create_table(
        "commits",
        sa.Column("owner", sa.String(256), primary_key=True),
        sa.Column("image_tag", sa.String(256), primary_key=True),
        sa.Column("sandbox_id", sa.String(128), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("started", sa.Float(53), nullable=False),
        sa.Column("completed", sa.Float(53)),
        sa.Column("failed_stage", sa.Text),
        sa.Column("error_code", sa.Text),
        sa.Column("error_message", sa.Text),
        sa.Column("snapshot", sa.Text),
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_table("commits")
    for name in (*TIMES, *TEXTS):
        op.drop_column("sandboxes", name)
