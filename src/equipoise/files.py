"""Files that are whole or not there."""

import os
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, content: bytes | str) -> None:
    """A reader sees the old file or the new one, never half of it, even if this process is killed."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
