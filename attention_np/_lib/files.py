"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

OPENED = ("/dev/std", "/dev/fd/", "/proc/")  # what somebody has opened already, a file perhaps, and goes on writing to


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file: it is the old one or the new one, whenever it is looked at, and keeps the old one's permissions.

    What is no regular file, as a pipe or ``/dev/stdout``, is written to as it is. Of a link, the file that it points to
    is written.
    """
    given = Path(path)
    if str(given.absolute()).startswith(OPENED) or (given.exists() and not given.is_file()):
        with given.open("ab") as stream:
            stream.write(content)
        return
    target = given.resolve()
    permissions = target.stat().st_mode & 0o7777 if target.exists() else None
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if permissions is None else 0o600)
        with os.fdopen(opened, "wb") as stream:
            stream.write(content)
        if permissions is not None:
            beside.chmod(permissions)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
