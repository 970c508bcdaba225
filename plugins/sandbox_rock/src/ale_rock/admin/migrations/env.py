"""Alembic's entry: the admin hands its connection over and runs everything in one transaction."""

from __future__ import annotations

from alembic import context

from ale_rock.admin.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
