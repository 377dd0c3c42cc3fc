"""Lets the operator set up, take over and turn off the mirror of a lab while its page is running.

RLHF_LAB_MIRROR takes precedence if it is set. Otherwise the settings entered on the page apply, which are stored in the home
(backup/mirror_settings.py).
"""

import threading
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from rlhf_lab.backup.hub_mirror import HubMirror
from rlhf_lab.backup.mirror_settings import MirrorSettings, delete_settings, read_settings, write_settings
from rlhf_lab.common.private_files import PRIVATE_FILE
from rlhf_lab.errors import ConfigError, MirrorError
from rlhf_lab.jobs.mirror_loop import LOCK_FILE, MIRROR_VARIABLE, TOKEN_VARIABLE, MirrorLoop, mirror_of


class MirrorControl:
    """The mirror of one page, if it has one. Methods may be called from any thread."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        """Raises ConfigError and StoreError for settings that cannot be used."""
        self.home, self._environment = home, environment
        mirror = mirror_of(home, environment)
        self.loop = MirrorLoop(mirror) if mirror is not None else None  # None: the lab is not saved
        self._is_started = False
        self._lock = threading.Lock()  # one decision at a time

    @property
    def mirror(self) -> HubMirror | None:
        return self.loop.mirror if self.loop is not None else None

    @property
    def repository(self) -> str:
        """OWNER/NAME, or "" if there is no mirror."""
        return self.loop.mirror.repository.name if self.loop is not None else ""

    @property
    def is_set_by_variable(self) -> bool:
        return bool(self._environment.get(MIRROR_VARIABLE, "").strip())

    @property
    def has_token_variable(self) -> bool:
        return bool(self._environment.get(TOKEN_VARIABLE, "").strip())

    @property
    def has_token(self) -> bool:
        """Whether a token was entered on the page."""
        settings = read_settings(self.home)
        return settings is not None and bool(settings.token)

    @property
    def has_conflict(self) -> bool:
        """Whether saving has stopped because another lab has saved to the repository."""
        return self.loop is not None and self.loop.has_conflict

    def start(self) -> None:
        self._is_started = True
        if self.loop is not None:
            self.loop.start()

    def stop(self) -> None:
        """Save the latest changes, unless that takes too long, and end the thread."""
        if self.loop is not None:
            self.loop.stop()

    def set_up(self, repository: str, token: str) -> None:
        """Save to this repository from now on. The access to it is checked first.

        token: "" keeps the one that was entered before. Raises ConfigError, MirrorError, StoreError; nothing is changed then.
        """
        with self._lock:
            self._check_not_set_by_variable()
            self._check_no_other_page()
            entered = read_settings(self.home)
            settings = MirrorSettings(repository.strip(), token.strip() or (entered.token if entered else ""))
            if not settings.repository:
                raise ConfigError("Enter the repository as OWNER/NAME. It is created if it does not exist.")
            mirror = mirror_of(self.home, self._environment, settings)
            assert mirror is not None  # a repository is named
            mirror.repository.check_access()
            write_settings(self.home, settings)
            self._replace_loop(MirrorLoop(mirror))

    def turn_off(self) -> None:
        """Stop saving, and delete the stored repository and token. The repository itself is kept. Raises ConfigError."""
        with self._lock:
            self._check_not_set_by_variable()
            delete_settings(self.home)
            self._replace_loop(None)

    def take_over(self) -> None:
        """Replace what another lab has saved to the repository. Raises MirrorError if no other lab has."""
        if self.loop is None or not self.loop.has_conflict:
            raise MirrorError("No other lab has saved to the repository, so there is nothing to take over.")
        self.loop.take_over()

    def _replace_loop(self, loop: MirrorLoop | None) -> None:
        if self.loop is not None:
            self.loop.end()
        self.loop = loop
        if loop is not None and self._is_started:
            loop.start()

    def _check_not_set_by_variable(self) -> None:
        if self.is_set_by_variable:
            raise ConfigError(
                f"{MIRROR_VARIABLE} names the repository where the lab was started. Change the variable there, or start the lab "
                "without it."
            )

    def _check_no_other_page(self) -> None:
        if self.loop is not None and self.loop.is_saving_page:
            return
        try:
            with FileLock(self.home / LOCK_FILE, timeout=0, mode=PRIVATE_FILE):
                pass
        except Timeout:
            raise MirrorError(
                "Another page of this lab saves it to the Hub, or an earlier save is still going on. Try again in a minute, or "
                "end the other page."
            ) from None
