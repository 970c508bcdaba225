"""The table of EnvHub keeps every registration as a version, under the user whose it is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SHARED = "name", "image", "owner", "description", "tags", "extra_spec"


def upgrade() -> None:
    """Create the table. Environments that were registered before become first versions that belong to no user."""
    made = op.create_table(
        "environment_versions",
        sa.Column("user", sa.String(256), primary_key=True),
        sa.Column("name", sa.String(256), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("image", sa.String(512), nullable=False),
        sa.Column("image_digest", sa.String(128)),
        sa.Column("owner", sa.String(256), nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("extra_spec", sa.Text),
        sa.Column("registered_by", sa.String(256), nullable=False),
        sa.Column("registered", sa.String(40), nullable=False),
        sa.Column("deleted", sa.String(40)),
    )
    old = sa.table("environments", *map(sa.column, (*SHARED, "updated")))
    rows = op.get_bind().execute(sa.select(old)).mappings().all()
    new = [
        {
            **{key: row[key] for key in SHARED},
            "user": "",
            "version": 1,
            "registered_by": row["owner"],
            "registered": row["updated"],
        }
        for row in rows
    ]
    if new:
        op.bulk_insert(made, new)
    op.drop_table("environments")


def downgrade() -> None:
    """Keep the newest version of each environment that belongs to no user."""
    made = op.create_table(
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
    names = (*SHARED, "user", "version", "registered", "deleted")
    versions = sa.table("environment_versions", *map(sa.column, names))
    mine = (versions.c.user == "") & versions.c.deleted.is_(None)
    rows = op.get_bind().execute(sa.select(versions).where(mine).order_by(versions.c.version)).mappings().all()
    newest = {row["name"]: row for row in rows}
    if newest:
        op.bulk_insert(
            made,
            [
                {**{key: row[key] for key in SHARED}, "created": row["registered"], "updated": row["registered"]}
                for row in newest.values()
            ],
        )
    op.drop_table("environment_versions")
