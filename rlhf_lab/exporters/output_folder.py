"""The folder that an export writes to: its files appear together or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlhf_lab.common.atomic import temporary_folder
from rlhf_lab.common.private_files import PRIVATE_FILE
from rlhf_lab.errors import StoreError


class AtomicOutput:
    """The files of an export while they are in a temporary folder."""

    def __init__(self, out_dir: Path, temp_dir: Path, force: bool) -> None:
        self.out_dir, self.temp_dir, self.force = out_dir, temp_dir, force
        self.names: list[str] = []

    @property
    def paths(self) -> list[Path]:
        """The final paths, in the order the files were added."""
        return [self.out_dir / name for name in self.names]

    def add(self, name: str) -> Path:
        """The temporary path of OUT/name. Raises StoreError when that exists and may not be replaced."""
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
            (self.temp_dir / name).chmod(PRIVATE_FILE)  # labels contain the names of people
            (self.temp_dir / name).replace(target)

    def _check_not_existing(self, name: str) -> None:
        if not self.force and (self.out_dir / name).exists():
            raise StoreError(
                f"{self.out_dir / name} is there already and was left as it is. Choose another folder, "
                "or replace it with --force."
            )


@contextmanager
def atomic_output(out_dir: Path, *, force: bool) -> Iterator[AtomicOutput]:
    """Write files under `out_dir` (created if missing): all of them appear at the end, none after an error.

    Raises StoreError when they cannot be written (a full disk, no permission) or exist already.
    """
    is_new_dir = not out_dir.exists()
    published = False
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        with temporary_folder(out_dir, ".export-") as temp_dir:
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
        if is_new_dir and not published:
            with suppress(OSError):
                out_dir.rmdir()
