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
    named = Path(path)
    if str(named.absolute()).startswith(OPENED) or (named.exists() and not named.is_file()):
        with named.open("ab") as stream:
            stream.write(content)
        return
    target = Path(os.path.realpath(named))  # Path.resolve has a RuntimeError for links that go round
    try:
        permissions = target.stat().st_mode & 0o7777
    except FileNotFoundError:
        permissions = None
    beside = target.with_name(f".attention_np.{secrets.token_hex(8)}.tmp")  # that name may be as long as names can be

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, 0o666 if permissions is None else 0o600)

    try:
        with open(beside, "xb", opener=opener) as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())  # or the new name may outlive a power failure, and what was written not
        if permissions is not None:
            beside.chmod(permissions)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
