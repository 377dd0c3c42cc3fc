"""A home as one file, for moving it between machines and versions: a zip with a manifest and the files of a snapshot.

    manifest.json       first: versions, and size and SHA-256 of each file
    lab.db, reward_models/…, runs/…, rewards/…, access.json …

`unzip` opens it. A restore requires exactly the files of the manifest, with their sizes and checksums; a damaged or forged
archive is rejected before anything is changed.
"""

import io
import math
import shutil
import stat
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import rlhf_lab
from rlhf_lab.backup import restore
from rlhf_lab.backup.snapshot import Snapshot, check_home, take_snapshot
from rlhf_lab.common.atomic import atomic_file, temporary_folder
from rlhf_lab.common.paths import regular_file
from rlhf_lab.common.private_files import PRIVATE_FILE, make_private_folder
from rlhf_lab.common.progress import FractionCallback, ignore_fraction
from rlhf_lab.errors import DataError, StoreError
from rlhf_lab.store import home_lock
from rlhf_lab.store.database import lab_exists

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
WORK_PREFIX = ".backup-"
MAX_WORK_AGE_S = 86_400.0
MAX_MANIFEST_BYTES = 2**26
MAX_FILES = 200_000
#: Of the zip's own list of files, which is read into memory when the archive is opened: a name has a few hundred bytes.
MAX_DIRECTORY_BYTES = 2**26
_MAX_END_BYTES = 2**17  # of the records at the end of a zip, which say where the list is, and its comment
#: Bytes of disk that a restore leaves free, for the migration of the database.
SPARE_BYTES = 2**26
CHUNK_BYTES = 1 << 20
#: Stored without compression, because weights hardly compress.
STORED_SUFFIXES = (".safetensors",)


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class FileRecord(_Record):
    """path: POSIX, relative to the home. size: bytes."""

    path: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(_Record):
    """lab_version: of the lab that made the backup. schema_revision: of its database. created_at: seconds since 1970."""

    format: Literal["rlhf-lab-backup"] = "rlhf-lab-backup"
    format_version: int
    lab_version: str
    schema_revision: str
    created_at: float = Field(ge=0, lt=1e11)  # can be written as a date
    files: list[FileRecord]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def backup_name(now: float | None = None) -> str:
    """A file name for a new backup, with the time in UTC."""
    return f"rlhf-lab-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}.zip"


def write_backup(
    home: Path, file: Path, on_progress: FractionCallback = ignore_fraction, *, force: bool = False
) -> Manifest:
    """Write a backup of a home, which may be in use, including the secrets that keep people signed in.

    file: written atomically, readable by its owner only. force: replace an existing one. Raises StoreError.
    """
    check_home(home)
    if file.is_dir():
        raise StoreError(f"{file} is a folder. Name a file, such as {file / backup_name()}.")
    if file.exists() and not force:
        raise StoreError(f"{file} exists already. Name another file, or replace it with --force.")
    _remove_old_work(home)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(home, WORK_PREFIX) as folder:
            snapshot = take_snapshot(home, folder, secrets=True)
            manifest = _manifest_of(snapshot)
            with atomic_file(file) as temp_path:
                temp_path.touch(PRIVATE_FILE)
                _write_zip(temp_path, manifest, snapshot, on_progress)
    except OSError as error:
        raise StoreError(
            f"The backup could not be written to {file} ({error.strerror or error}). Check the folder and its free space, and "
            "try again. The lab was not changed."
        ) from error
    return manifest


def _manifest_of(snapshot: Snapshot) -> Manifest:
    return Manifest(
        format_version=FORMAT_VERSION,
        lab_version=rlhf_lab.__version__,
        schema_revision=snapshot.schema,
        created_at=snapshot.created_at,
        files=[FileRecord(path=file.path, size=file.size, sha256=file.sha256) for file in snapshot.files],
    )


def _write_zip(path: Path, manifest: Manifest, snapshot: Snapshot, on_progress: FractionCallback) -> None:
    done, total = 0, max(1, snapshot.size)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_entry(MANIFEST_FILE, 0), manifest.model_dump_json(indent=1))
        for file in snapshot.files:
            with file.source.open("rb") as source, archive.open(_entry(file.path, file.size), "w") as target:
                while chunk := source.read(CHUNK_BYTES):
                    target.write(chunk)
                    done += len(chunk)
                    on_progress(done / total)


def _entry(path: str, size: int) -> zipfile.ZipInfo:
    """size: in bytes; zipfile needs it to choose the 64-bit format for large files."""
    entry = zipfile.ZipInfo(path, time.gmtime()[:6])
    entry.compress_type = zipfile.ZIP_STORED if path.endswith(STORED_SUFFIXES) else zipfile.ZIP_DEFLATED
    entry.external_attr = (stat.S_IFREG | PRIVATE_FILE) << 16
    entry.file_size = size
    return entry


def _remove_old_work(home: Path) -> None:
    """Delete work folders that interrupted backups left behind."""
    for folder in home.glob(f"{WORK_PREFIX}*"):
        if time.time() - folder.stat().st_mtime > MAX_WORK_AGE_S:
            shutil.rmtree(folder, ignore_errors=True)


def read_manifest(file: Path) -> Manifest:
    """The manifest of a backup. Raises DataError also if the archive has other files than the manifest lists."""
    with _opened(file) as archive:
        return _checked_manifest(archive)


def restore_backup(
    file: Path, home: Path, on_progress: FractionCallback = ignore_fraction, *, replace: bool = False
) -> Path | None:
    """Restore a backup into a home that is not in use: a new one, or with `replace` also one that has a lab.

    Returns the folder that holds the old content, or None if there was none. Raises DataError if the file is not an intact backup
    or comes from a newer version, StoreError if the home is in use, has a lab, or cannot be written; nothing is changed then.
    """
    with _opened(file) as archive:
        manifest = _checked_manifest(archive)
        if lab_exists(home) and not replace:
            raise StoreError(
                f"{home} has a lab already. Choose another folder with --home, or replace the lab with --yes: its data are kept "
                "in a folder of the home."
            )
        _make_home(home)
        with home_lock.lock_exclusively(home):
            restore.remove_leftovers(home)
            with restore.new_content(home) as folder:
                _extract(archive, manifest, folder, on_progress)
                return restore.install_files(home, folder)


def stage_backup(file: Path, home: Path, on_progress: FractionCallback = ignore_fraction) -> Manifest:
    """Extract and verify a backup into a staging folder of the home, which may be in use, for `confirm_staged`.

    Raises DataError for a backup that cannot be used, StoreError if the home cannot be written.
    """
    with _opened(file) as archive, restore.new_content(home) as folder:
        manifest = _checked_manifest(archive)
        _extract(archive, manifest, folder, on_progress)
        discard_staged(home)
        folder.rename(home / restore.CHECKED_FOLDER)
    return manifest


def confirm_staged(home: Path) -> None:
    """Let the staged backup replace the home's content at the next start of the page. Raises StoreError if there is none."""
    try:
        (home / restore.CHECKED_FOLDER).rename(home / restore.CONFIRMED_FOLDER)
    except OSError as error:
        raise StoreError(f"The backup is not there any more ({error.strerror or error}). Upload it again.") from error


def discard_staged(home: Path) -> None:
    """Delete the staged backup, whether confirmed or not."""
    for name in (restore.CHECKED_FOLDER, restore.CONFIRMED_FOLDER):
        shutil.rmtree(home / name, ignore_errors=True)


def is_confirmed(home: Path) -> bool:
    """Whether a confirmed backup will replace the home's content at the next start of the page."""
    return (home / restore.CONFIRMED_FOLDER).is_dir()


def _make_home(home: Path) -> None:
    try:
        make_private_folder(home)
    except OSError as error:
        raise StoreError(
            f"The home {home} cannot be made ({error.strerror or error}). Choose another with --home."
        ) from error


@contextmanager
def _opened(file: Path) -> Iterator[zipfile.ZipFile]:
    """Open the archive. Errors while it is read are raised as DataError."""
    try:
        with ExitStack() as stack:
            try:
                source = stack.enter_context(_BoundedReader(io.FileIO(regular_file(file))))
                archive = stack.enter_context(zipfile.ZipFile(source))
            except OSError as error:
                raise DataError(f"{file} cannot be read: {error.strerror or error}. Name a backup of a lab.") from error
            source.unread = math.inf
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise DataError(
            f"{file.name} is not an intact backup of a lab ({error}): it is damaged, incomplete, or a different file. "
            "Nothing was changed."
        ) from error


class _BoundedReader(io.BufferedReader):
    """A zip of which at most `unread` further bytes can be read. While it is opened, that limits its list of files, which has no
    limit of its own."""

    unread: float = MAX_DIRECTORY_BYTES + _MAX_END_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        """Raises DataError."""
        if size is not None and size > self.unread:
            raise DataError("This zip is not a backup of a lab: its list of files is too long. Nothing was changed.")
        data = super().read(size)
        self.unread -= len(data)
        return data


def _checked_manifest(archive: zipfile.ZipFile) -> Manifest:
    entries = archive.infolist()
    if not entries or entries[0].filename != MANIFEST_FILE:
        raise DataError("This zip is not a backup of a lab: it does not begin with manifest.json. Nothing was changed.")
    if entries[0].file_size > MAX_MANIFEST_BYTES or len(entries) > MAX_FILES:
        raise DataError("This zip is not a backup of a lab: its list of files is too long. Nothing was changed.")
    with archive.open(entries[0]) as source:
        text = source.read(MAX_MANIFEST_BYTES + 1)
    _check_version(text)
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise DataError(f"manifest.json cannot be read ({where}: {problem['msg']}). Nothing was changed.") from error
    records = {file.path: file for file in manifest.files}
    if len(records) != len(manifest.files):
        raise DataError("manifest.json lists a file twice. Nothing was changed.")
    restore.check_file_list(records)
    names = [entry.filename for entry in entries[1:]]
    if sorted(names) != sorted(records):
        different = sorted(set(names) ^ set(records)) or names
        raise DataError(f"manifest.json and the files of the archive differ: {different[0]!r}. Nothing was changed.")
    for entry in entries[1:]:
        restore.safe_path(entry.filename)
        is_regular = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG)
        if not is_regular or entry.flag_bits & 1 or entry.file_size != records[entry.filename].size:
            raise DataError(f"{entry.filename!r} is not the file that manifest.json lists. Nothing was changed.")
    return manifest


class _Versions(BaseModel):
    format: Literal["rlhf-lab-backup"]
    format_version: int
    lab_version: str
    schema_revision: str


def _check_version(manifest: bytes) -> None:
    """Raises DataError for a backup of a newer version, even if the rest of its manifest cannot be parsed."""
    from rlhf_lab.store import migrations  # late, because importing Alembic takes 0.3 s

    try:
        versions = _Versions.model_validate_json(manifest)
    except ValidationError as error:
        raise DataError(
            "This zip is not a backup of a lab: its manifest.json has another format. Nothing was changed."
        ) from error
    if migrations.is_of_development(versions.schema_revision):
        raise DataError(
            f"This backup was made by a development version of the lab (schema {versions.schema_revision}), and only version "
            "0.2.0 can migrate it. Restore it with version 0.2.0, then open that home with this one. Nothing was changed."
        )
    if versions.format_version > FORMAT_VERSION or versions.schema_revision not in migrations.revisions():
        raise DataError(
            f"This backup was made by a newer version of the lab ({versions.lab_version}, schema {versions.schema_revision}; "
            f"this one is {rlhf_lab.__version__}). Update this lab, then restore it. Nothing was changed."
        )


def _extract(archive: zipfile.ZipFile, manifest: Manifest, folder: Path, on_progress: FractionCallback) -> None:
    """Write the files to an empty folder, verify their checksums and open the database.

    Raises DataError, StoreError, OSError.
    """
    free = shutil.disk_usage(folder).free
    if manifest.size + SPARE_BYTES > free:
        raise StoreError(
            f"The backup needs {manifest.size / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free on the disk of the home. Free "
            "some space, or choose another home. Nothing was changed."
        )
    done, total = 0, max(1, manifest.size)
    for record in manifest.files:
        target = folder / restore.safe_path(record.path)
        make_private_folder(target.parent)
        with archive.open(record.path) as source, target.open("xb") as output:
            target.chmod(PRIVATE_FILE)
            for chunk in _chunks(source, record):
                output.write(chunk)
                done += len(chunk)
                on_progress(done / total)
    restore.check_content(folder)


def _chunks(source: IO[bytes], record: FileRecord) -> Iterator[bytes]:
    """The content of an entry. Raises DataError, after the last chunk at the latest, if its size or checksum is wrong."""
    digest, size = sha256(), 0
    while chunk := source.read(CHUNK_BYTES):
        size += len(chunk)
        if size > record.size:
            break
        digest.update(chunk)
        yield chunk
    if size != record.size or digest.hexdigest() != record.sha256:
        raise DataError(f"{record.path} is damaged: its checksum differs. Nothing was changed; make a new backup.")
