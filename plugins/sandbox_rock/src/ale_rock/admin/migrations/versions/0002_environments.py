"""The table of EnvHub."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make it."""
    op.create_table(
        "environments",
        sa.Column("name", sa.String(256), primary_key=True),
        sa.Column("image", sa.String(512), nullable=False),
        sa.Column("owner", sa.String(256), nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("extra_spec", sa.Text),
        sa.Column("created", sa.String(40), nullable=False),
        sa.Column("updated", sa.String(40), nullable=False),
    )
    op.create_index("ix_environments_owner", "environments", ["owner"])


def downgrade() -> None:
    """Remove it."""
    op.drop_table("environments")
