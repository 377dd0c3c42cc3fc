"""Files that appear in a folder whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlhf_lab.errors import StoreError


class Stage:
    """Files that are being written beside their final place."""

    def __init__(self, out: Path, building: Path, force: bool) -> None:
        self.out, self.building, self.force = out, building, force
        self.names: list[str] = []

    @property
    def paths(self) -> list[Path]:
        """Where the files stand in the end, in the order they were added."""
        return [self.out / name for name in self.names]

    def add(self, name: str) -> Path:
        """Where to write what will be OUT/name. Raises StoreError when that is there and may not be replaced."""
        self._check(name)
        self.names.append(name)
        path = self.building / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def publish(self) -> None:
        for name in self.names:
            self._check(name)
        for name in self.names:
            target = self.out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.building / name).replace(target)

    def _check(self, name: str) -> None:
        if not self.force and (self.out / name).exists():
            raise StoreError(
                f"{self.out / name} is there already and was left as it is. Choose another folder, or replace it with --force."
            )


@contextmanager
def staging(out: Path, *, force: bool) -> Iterator[Stage]:
    """Write files under `out` (made if missing): all of them appear at the end, none after an error.

    Raises StoreError when they cannot be written (a full disk, no permission) or stand there already.
    """
    new = not out.exists()
    building: Path | None = None
    done = False
    try:
        out.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=".export-", dir=out))  # the same file system: renaming is one act
        stage = Stage(out, building, force)
        yield stage
        stage.publish()
        done = True
    except OSError as error:
        raise StoreError(
            f"The export could not be written to {out} ({error.strerror or error}). Free some disk space, or choose another "
            "folder that you may write to; nothing half-written was left."
        ) from error
    finally:
        if building is not None:
            shutil.rmtree(building, ignore_errors=True)
        if new and not done:
            with suppress(OSError):
                out.rmdir()
