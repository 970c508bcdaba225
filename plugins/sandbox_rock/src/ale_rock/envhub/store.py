"""EnvHub's table: environments by name, with the image in which each runs and how it is made there.

1. Every registration is a version. `NAME` means the newest, `NAME@3` the third, as it was registered then.
2. Environments belong to the user that registered them. Those registered without a user's name (by an admin, or where
   no token is needed) are everybody's. Two users may use one name for different environments.
3. A deleted version can no longer be made. Its row stays, so that no later version gets its number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, Connection, Integer, Row, String, Table, Text, and_, func, insert, select, update

from ale_rock.admin.store import Store
from ale_rock.admin.tables import METADATA
from ale_rock.envhub.models import Environment, EnvironmentVersion, split_version

VERSIONS = Table(
    "environment_versions",
    METADATA,
    Column("user", String(256), primary_key=True),
    Column("name", String(256), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("image", String(512), nullable=False),
    Column("image_digest", String(128)),
    Column("owner", String(256), nullable=False),
    Column("description", Text, nullable=False),
    Column("tags", Text, nullable=False),
    Column("extra_spec", Text),
    Column("registered_by", String(256), nullable=False),
    Column("registered", String(40), nullable=False),
    Column("deleted", String(40)),
)
KEPT = VERSIONS.c.deleted.is_(None)
EVERYBODY = ""
"""The user of environments that are everybody's."""
LONGEST_HISTORY = 1000
_DIGEST = re.compile(r".+@(sha256:[0-9a-f]{64})")


class EnvHub:
    """The environments in the database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def register(
        self, wanted: Environment, user: str, registered_by: str, image_digest: str | None = None
    ) -> EnvironmentVersion:
        """Keep an environment as the next version of its name."""
        named = _DIGEST.fullmatch(wanted.image)
        values = {
            "user": user,
            "name": wanted.env_name,
            "image": wanted.image,
            "image_digest": named[1] if named else image_digest,
            "owner": wanted.owner,
            "description": wanted.description,
            "tags": json.dumps(wanted.tags),
            "extra_spec": None if wanted.extra_spec is None else json.dumps(wanted.extra_spec),
            "registered_by": registered_by,
            "registered": _now(),
        }
        same = (VERSIONS.c.user == user) & (VERSIONS.c.name == wanted.env_name)

        def write(connection: Connection) -> EnvironmentVersion | None:
            last = connection.scalar(select(func.max(VERSIONS.c.version)).where(same)) or 0
            connection.execute(insert(VERSIONS).values(version=last + 1, **values))
            return _find(connection, wanted.env_name, (user,))

        written = await self._store.run(write)
        assert written is not None, "it was just written"
        return written

    async def find(self, name: str, users: Sequence[str]) -> EnvironmentVersion | None:
        """Return `NAME` or `NAME@VERSION` of the first of these users that has this name."""
        return await self._store.run(lambda connection: _find(connection, name, users))

    async def list(self, users: Sequence[str] | None, owner: str | None, tags: set[str]) -> list[EnvironmentVersion]:
        """Return the newest versions of these users, or of all, by name; of an owner, if given, and with all tags."""
        kept = KEPT if users is None else KEPT & VERSIONS.c.user.in_(users)
        newest = _newest().where(kept).subquery()
        same = and_(*(VERSIONS.c[key] == newest.c[key] for key in ("user", "name", "version")))
        wanted = select(VERSIONS, newest.c.created).join(newest, same).order_by(VERSIONS.c.name, VERSIONS.c.user)
        if owner:
            wanted = wanted.where(VERSIONS.c.owner == owner)
        found = await self._store.run(lambda connection: [_read(row) for row in connection.execute(wanted)])
        return [each for each in found if tags <= set(each.tags)]

    async def versions(self, name: str, users: Sequence[str]) -> Sequence[EnvironmentVersion]:
        """Return the versions of a name, the newest first, deleted ones too; of the first of these users that has
        any."""
        wanted = (
            select(VERSIONS, VERSIONS.c.registered.label("created"))
            .where(VERSIONS.c.name == name)
            .order_by(VERSIONS.c.version.desc())
            .limit(LONGEST_HISTORY)
        )

        def read(connection: Connection) -> Sequence[Row[Any]]:
            for user in users:
                rows = connection.execute(wanted.where(VERSIONS.c.user == user)).all()
                if rows:
                    return rows
            return ()

        return [_read(row) for row in await self._store.run(read)]

    async def delete(self, name: str, user: str) -> bool:
        """Delete all versions of `NAME`, or `NAME@VERSION`; whether there was something to delete."""
        name, version = split_version(name)
        same = KEPT & (VERSIONS.c.user == user) & (VERSIONS.c.name == name)
        if version is not None:
            same &= VERSIONS.c.version == version
        mark = update(VERSIONS).where(same).values(deleted=_now())
        return await self._store.run(lambda connection: connection.execute(mark).rowcount) > 0


def _newest() -> Any:
    """The newest version of each name, with the time at which its oldest was registered."""
    user, name = VERSIONS.c.user, VERSIONS.c.name
    newest, created = func.max(VERSIONS.c.version).label("version"), func.min(VERSIONS.c.registered).label("created")
    return select(user, name, newest, created).group_by(user, name)


def _find(connection: Connection, name: str, users: Sequence[str]) -> EnvironmentVersion | None:
    bare, version = split_version(name)
    there = _newest().where(KEPT & (VERSIONS.c.name == bare) & VERSIONS.c.user.in_(users))
    newest = {row.user: row for row in connection.execute(there)}
    found = next((newest[user] for user in users if user in newest), None)
    if found is None:
        return None
    wanted = select(VERSIONS).where(
        KEPT,
        VERSIONS.c.user == found.user,
        VERSIONS.c.name == bare,
        VERSIONS.c.version == (found.version if version is None else version),
    )
    row = connection.execute(wanted).one_or_none()
    if row is None:
        return None
    read = _read(row, found.created)
    return read if version is None else read.model_copy(update={"env_name": name})


def _read(row: Row[Any], created: str | None = None) -> EnvironmentVersion:
    """Return the version in a row."""
    return EnvironmentVersion(
        env_name=row.name,
        image=row.image,
        owner=row.owner,
        description=row.description,
        tags=json.loads(row.tags),
        extra_spec=None if row.extra_spec is None else json.loads(row.extra_spec),
        create_at=created or row.created,
        update_at=row.registered,
        version=row.version,
        user=row.user,
        registered_by=row.registered_by,
        image_digest=row.image_digest,
        deleted_at=row.deleted,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat()
