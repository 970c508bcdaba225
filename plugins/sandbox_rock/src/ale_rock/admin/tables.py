"""The tables of the database; `migrations/` makes them."""

from __future__ import annotations

from sqlalchemy import Column, Float, Integer, MetaData, String, Table, Text

METADATA = MetaData()

SANDBOXES = Table(
    "sandboxes",
    METADATA,
    Column("id", String(128), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("image", Text),
    Column("memory", Text),
    Column("disk", Text),
    Column("user", Text),
    Column("experiment", Text),
    Column("namespace", Text),
    Column("priority", Integer, nullable=False),
    Column("idle_s", Float(53)),
    Column("delete_s", Float(53)),
    Column("archive_s", Float(53)),
    Column("lifetime_s", Float(53)),
    Column("state", String(16), nullable=False, index=True),
    Column("worker", Text),
    Column("host_name", Text),
    Column("host_ip", Text),
    Column("reason", Text),
    Column("code", Integer),
    Column("created", Float(53), nullable=False),
    Column("started", Float(53)),
    Column("stopped", Float(53), index=True),
    Column("archived", Float(53)),
    Column("deleted", Float(53)),
    Column("snapshot", Text, index=True),
    Column("kept_order", Text),
    Column("need", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("history", Text, nullable=False),
)

SERVICE = Table("service", METADATA, Column("id", String(32), primary_key=True))
"""One row, whose id is in the names of all snapshots of this service."""

COMMITS = Table(
    "commits",
    METADATA,
    Column("owner", String(256), primary_key=True),
    Column("image_tag", String(256), primary_key=True),
    Column("sandbox_id", String(128), nullable=False),
    Column("phase", String(16), nullable=False),
    Column("started", Float(53), nullable=False),
    Column("completed", Float(53)),
    Column("failed_stage", Text),
    Column("error_code", Text),
    Column("error_message", Text),
    Column("snapshot", Text),
)
