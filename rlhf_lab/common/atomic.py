"""Files that appear in a folder whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlhf_lab.errors import StoreError


class AtomicOutput:
    """Files that are being written beside their final place."""

    def __init__(self, out_dir: Path, temp_dir: Path, force: bool) -> None:
        self.out_dir, self.temp_dir, self.force = out_dir, temp_dir, force
        self.names: list[str] = []

    @property
    def paths(self) -> list[Path]:
        """Where the files stand in the end, in the order they were added."""
        return [self.out_dir / name for name in self.names]

    def add(self, name: str) -> Path:
        """Where to write what will be OUT/name. Raises StoreError when that is there and may not be replaced."""
        self._check_not_existing(name)
        self.names.append(name)
        path = self.temp_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def publish(self) -> None:
        for name in self.names:
            self._check_not_existing(name)
        for name in self.names:
            target = self.out_dir / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.temp_dir / name).replace(target)

    def _check_not_existing(self, name: str) -> None:
        if not self.force and (self.out_dir / name).exists():
            raise StoreError(
                f"{self.out_dir / name} is there already and was left as it is. Choose another folder, or replace it with --force."
            )


@contextmanager
def atomic_output(out_dir: Path, *, force: bool) -> Iterator[AtomicOutput]:
    """Write files under `out_dir` (made if missing): all of them appear at the end, none after an error.

    Raises StoreError when they cannot be written (a full disk, no permission) or stand there already.
    """
    is_new_dir = not out_dir.exists()
    temp_dir: Path | None = None
    published = False
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        temp_dir = Path(tempfile.mkdtemp(prefix=".export-", dir=out_dir))  # the same file system: renaming is one act
        output = AtomicOutput(out_dir, temp_dir, force)
        yield output
        output.publish()
        published = True
    except OSError as error:
        raise StoreError(
            f"The export could not be written to {out_dir} ({error.strerror or error}). Free some disk space, or choose another "
            "folder that you may write to; nothing half-written was left."
        ) from error
    finally:
        if temp_dir is not None:
            shutil.rmtree(temp_dir, ignore_errors=True)
        if is_new_dir and not published:
            with suppress(OSError):
                out_dir.rmdir()
