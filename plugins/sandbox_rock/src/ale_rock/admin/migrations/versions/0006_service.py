"""The id of the service, by which it knows its own snapshots among those of a machine; and an index to find them."""

from __future__ import annotations

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make them."""
    made = op.create_table("service", sa.Column("id", sa.String(32), primary_key=True))
    op.bulk_insert(made, [{"id": uuid4().hex[:12]}])
    op.create_index("ix_sandboxes_snapshot", "sandboxes", ["snapshot"])


def downgrade() -> None:
    """Remove them."""
    op.drop_index("ix_sandboxes_snapshot", "sandboxes")
    op.drop_table("service")
