"""Saves a lab to a private dataset repository on the Hub, and restores an empty home from it.

A save is one commit: the files of a snapshot that have changed, and a manifest that lists all its files. The parent of the commit
is the previous save, so the Hub rejects it if there has been any other commit since. The manifest of that other commit decides:

- It is a save of this mirror: the connection broke after the Hub had accepted the commit, or the process ended before recording
  it. The mirror continues from there.
- It is a save of another lab, or of this lab in another home: the mirror stops, since two labs would overwrite each other's
  labels.

Restoring also makes a commit. If the old home is still in use (a Space that is being replaced), the next save of the old home is
rejected, and not that of the new one.

The database is saved uncompressed: the Hub deduplicates equal parts of files and transfers only the parts that have changed.
"""

import contextlib
import logging
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rlhf_lab.backup.hub_repository import HubRepository
from rlhf_lab.backup.mirror_records import MANIFEST_FILE, Manifest, ManifestFile, MirrorState, read_state
from rlhf_lab.backup.process_rows import clear_process_rows
from rlhf_lab.backup.restore import check_file_list, restore_files, safe_path
from rlhf_lab.backup.snapshot import CheckpointRule, KnownFile, Snapshot, SnapshotFile, take_snapshot
from rlhf_lab.common.hashing import file_sha256
from rlhf_lab.common.private_files import make_private_folder
from rlhf_lab.errors import HubUnavailableError, MirrorConflictError, MirrorError
from rlhf_lab.store.database import FILE_NAME, lab_exists

log = logging.getLogger("rlhf_lab.mirror")
WORK_FOLDER, DOWNLOAD_FOLDER = ".mirror", ".mirror-download"
#: The history is squashed after this many commits.
MAX_COMMITS = 100
MAX_RESTORE_ATTEMPTS = 5
WHAT_TO_DO = (
    "Only one lab may save to a repository. Stop the other one. Then the operator takes over under Runs & data → Backup, "
    "or restarts this lab with RLHF_LAB_MIRROR_TAKE_OVER=1: it then replaces what the other one has saved. Or name another "
    "repository."
)


class HubMirror:
    """The mirror of one home. Not thread-safe; only one process uses it (jobs/mirror_loop.py)."""

    def __init__(
        self, home: Path, repository: HubRepository, *, checkpoints: CheckpointRule = CheckpointRule.NEWEST,
        take_over: bool = False,
    ) -> None:  # fmt: skip
        """take_over: replace what another lab has saved to the repository, once."""
        self.home, self.repository, self._checkpoints = home, repository, checkpoints
        self._take_over = take_over
        self._known: Mapping[str, KnownFile] = {}
        self.read_state()

    def read_state(self) -> None:
        """Read the state from the home again, because another process may have saved in the meantime."""
        state = read_state(self.home)
        if state is None or state.repository != self.repository.name:
            state = MirrorState(self.repository.name, lab=state.lab if state is not None else "")
        self.state = state
        self._saved_files: Mapping[str, ManifestFile] | None = None  # in the repository; None: not known yet

    def allow_take_over(self) -> None:
        """Let the next save replace what another lab has saved."""
        self._take_over = True

    # ---- saving

    def save(self) -> bool:
        """Save what has changed since the last save. Returns False if nothing has.

        Raises HubUnavailableError, MirrorConflictError, MirrorError, StoreError.
        """
        saved_files = self._find_head()
        folder = self.home / WORK_FOLDER
        try:
            snapshot = take_snapshot(self.home, folder, known=self._known, checkpoints=self._checkpoints)
            self._known = snapshot.known
            files = _without_process_rows(snapshot)
            entries = {file.path: ManifestFile(file.size, file.sha256) for file in files}
            if entries == saved_files:
                self._note_saved(snapshot.created_at)
                return False
            manifest = Manifest(self._lab_id(), uuid.uuid4().hex, snapshot.created_at, snapshot.schema, entries)
            sources = {file.path: file.source for file in files if saved_files.get(file.path) != entries[file.path]}
            try:
                self._commit(manifest, sources, sorted(saved_files.keys() - entries.keys()), folder, "Save")
            except MirrorConflictError:
                self._find_head()  # says what to do if the other commit is another lab's
                raise HubUnavailableError(f"somebody changed {self.repository.name} during a save") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._squash_if_long()
        return True

    def note_unchanged(self, moment: float) -> None:
        """Record that the last save was still up to date at `moment` (seconds since 1970)."""
        self._note_saved(moment)

    def note_problem(self, message: str) -> None:
        if message != self.state.problem:
            self.state.problem = message
            self._write_state()

    def _note_saved(self, moment: float) -> None:
        self.state.saved_at, self.state.problem = moment, ""
        self._write_state()

    def _write_state(self) -> None:
        try:
            self.state.write(self.home)
        except OSError as error:
            raise MirrorError(
                f"{self.home} cannot be written ({error.strerror or error}). Free some disk space."
            ) from error

    def _lab_id(self) -> str:
        self.state.lab = self.state.lab or uuid.uuid4().hex
        return self.state.lab

    def _commit(
        self, manifest: Manifest, sources: Mapping[str, Path], deletions: list[str], folder: Path, message: str
    ) -> None:
        """Commit a manifest with the files of `sources`.

        The attempt is recorded before it is made, so that the commit is recognised if the connection breaks.
        """
        folder.mkdir(exist_ok=True)
        manifest_file = folder / MANIFEST_FILE
        manifest_file.write_text(manifest.to_json(), encoding="utf-8")
        self.state.attempts.append(manifest.save)
        self._write_state()
        head = self.repository.commit({**sources, MANIFEST_FILE: manifest_file}, deletions, self.state.head, message)
        self._adopt(head, manifest, manifest.files)
        self.state.commits += 1
        self._note_saved(manifest.taken_at)

    def _adopt(self, head: str, manifest: Manifest, saved_files: Mapping[str, ManifestFile]) -> None:
        self.state.head, self.state.lab, self.state.save, self.state.attempts = head, manifest.lab, manifest.save, []
        self._saved_files = saved_files

    def _find_head(self) -> Mapping[str, ManifestFile]:
        """Check that the head of the repository is a save of this home, and return its files.

        Raises MirrorConflictError if it is not.
        """
        head = self.repository.head_or_create()
        if head == self.state.head and self._saved_files is not None:
            return self._saved_files
        manifest = self._read_manifest(head)
        if manifest is None:
            self._saved_files = {}
        elif manifest.save in (self.state.save, *self.state.attempts):
            self._adopt(head, manifest, manifest.files if head == self.state.head else self._unverified(head, manifest))
            self.state.saved_at = max(self.state.saved_at or 0.0, manifest.taken_at)
        elif self._take_over:
            self._adopt(head, replace(manifest, lab=self._lab_id()), self._unverified(head, manifest))
        else:
            raise MirrorConflictError(self._conflict_text(manifest))
        self._take_over = False
        self.state.head = head
        self._write_state()
        return self._saved_files or {}

    def _unverified(self, head: str, manifest: Manifest) -> dict[str, ManifestFile]:
        """The files of a save that are in a commit, without size and checksum, so that all of them are uploaded again.

        Used for a commit that this mirror has not made or not seen accepted: its files may have been changed.
        """
        return {path: ManifestFile(-1, "") for path in self.repository.files(head) if path in manifest.files}

    def _read_manifest(self, head: str) -> Manifest | None:
        """The manifest, or None if nothing was saved yet. Raises MirrorError for a repository with other content."""
        files = self.repository.files(head)
        if MANIFEST_FILE not in files:
            if files:
                raise MirrorError(
                    f"The dataset {self.repository.name} holds something else ({', '.join(sorted(files)[:3])} …). Name an empty "
                    "repository, or one that does not exist yet."
                )
            return None
        folder = self.home / DOWNLOAD_FOLDER
        try:
            file = self.repository.download(head, MANIFEST_FILE, folder / "manifest")
            return Manifest.from_json(file.read_text(encoding="utf-8"))
        finally:
            shutil.rmtree(folder / "manifest", ignore_errors=True)
            with contextlib.suppress(OSError):  # not empty: it contains files of a restore
                folder.rmdir()

    def _conflict_text(self, manifest: Manifest) -> str:
        moment = time.strftime("%Y-%m-%d %H:%M", time.gmtime(manifest.taken_at))
        if manifest.lab == self.state.lab:
            what = f"The same lab, in another place, has saved to {self.repository.name} (on {moment} UTC)"
        else:
            what = f"The dataset {self.repository.name} holds another lab (saved on {moment} UTC)"
        return f"{what}. {WHAT_TO_DO}"

    def _squash_if_long(self) -> None:
        if self.state.commits < MAX_COMMITS:
            return
        try:
            self.repository.squash(f"Squash {self.state.commits} saves")
            head = self.repository.head()
            manifest = self._read_manifest(head) if head is not None else None
        except MirrorError as error:  # the save itself has succeeded; the next one squashes
            log.warning("the history was not squashed: %s", error)
            return
        if head is not None and manifest is not None and manifest.save == self.state.save:
            self.state.head, self.state.commits = head, 0
            self._write_state()

    # ---- restoring

    def restore(self) -> bool:
        """Restore the lab into a home without a database. Returns False if the repository is empty or the home has a lab.

        All or nothing: if it fails, the home still has no lab.

        Raises HubUnavailableError, MirrorError, DataError, StoreError.
        """
        if lab_exists(self.home):
            return False
        make_private_folder(self.home)
        for _ in range(MAX_RESTORE_ATTEMPTS):
            head = self.repository.head_or_create()
            manifest = self._read_manifest(head)
            if manifest is None:
                return False
            check_file_list(manifest.files)
            files = self._download(head, manifest)
            try:
                self._claim(head, manifest)
            except MirrorConflictError:
                continue  # the old home has saved since the download
            restore_files(files, self.home)
            shutil.rmtree(self.home / DOWNLOAD_FOLDER, ignore_errors=True)
            return True
        raise MirrorError(
            f"Another lab keeps saving to {self.repository.name}, so this one cannot take its place. Stop the other one and "
            "start this one again."
        )

    def _download(self, head: str, manifest: Manifest) -> tuple[SnapshotFile, ...]:
        """Download and verify the files of a save. Files that an interrupted restore has downloaded are reused."""
        folder = self.home / DOWNLOAD_FOLDER
        files = []
        for path, entry in sorted(manifest.files.items()):
            source = folder / safe_path(path)  # the path is untrusted: others may write to the repository
            for _ in range(2):  # the first attempt may continue a partial file of an older save
                if not _matches(source, entry):
                    source.unlink(missing_ok=True)
                    self.repository.download(head, path, folder)
            if not _matches(source, entry):
                raise MirrorError(
                    f"{path} in {self.repository.name} is not the file that was saved: its SHA-256 differs from the manifest. "
                    "An older commit of the repository may be intact; revert to it on huggingface.co."
                )
            files.append(SnapshotFile(path, source, entry.size, entry.sha256))
        return tuple(files)

    def _claim(self, head: str, manifest: Manifest) -> None:
        """Commit the same save with a new id, so that the next save of any other home has an outdated parent."""
        self.state.head, self.state.lab = head, manifest.lab
        claim = Manifest(manifest.lab, uuid.uuid4().hex, manifest.taken_at, manifest.schema, manifest.files)
        folder = self.home / WORK_FOLDER
        try:
            self._commit(claim, {}, [], folder, "Restore")
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _without_process_rows(snapshot: Snapshot) -> list[SnapshotFile]:
    return [
        file._replace(sha256=clear_process_rows(file.source), size=file.source.stat().st_size)
        if file.path == FILE_NAME
        else file
        for file in snapshot.files
    ]


def _matches(file: Path, entry: ManifestFile) -> bool:
    return file.is_file() and file.stat().st_size == entry.size and file_sha256(file) == entry.sha256
