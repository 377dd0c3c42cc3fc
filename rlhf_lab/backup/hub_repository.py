"""Requests to a private dataset repository on the Hub, made with huggingface_hub."""

import errno
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_lab.common.hub_errors import HubBusyError, HubSlowError, by_deadline, first_line, limit_waits, retry_after_s
from rlhf_lab.errors import ConfigError, HubUnavailableError, MirrorConflictError, MirrorError

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

log = logging.getLogger("rlhf_lab.mirror")
REPO_TYPE = "dataset"
#: Timeout of a request. The client has none by default.
REQUEST_TIMEOUT_S = 30.0
STALE_PARENT, RATE_LIMIT = 412, 429
WHERE_TO_PUT_A_TOKEN = (
    "Enter it under Runs & data → Backup, or set it as HF_TOKEN (on a Space: as a secret) and start the lab again."
)


class HubRepository:
    """One repository. Nothing is requested until a method is called.

    Every method raises HubUnavailableError if a retry may help, and MirrorError, with advice for the operator, if not.
    """

    def __init__(self, name: str, token: str | None = None) -> None:
        """name: OWNER/NAME. token: None means HF_TOKEN or the stored login. Raises ConfigError."""
        if name.count("/") != 1 or not all(name.split("/")):
            raise ConfigError(f'"{name}" is not a name of a repository on the Hub. Write OWNER/NAME.')
        self.name, self._token = name, token

    def head(self) -> str | None:
        """The newest commit, or None if there is no such repository or the token cannot see it.

        Raises MirrorError for a public repository.
        """
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._errors() as api:
            try:
                info = api.dataset_info(self.name, timeout=REQUEST_TIMEOUT_S)
            except RepositoryNotFoundError:
                return None
        if not info.private:
            raise MirrorError(
                f"The dataset {self.name} on the Hub is public, and labels are personal data. Make it private in its settings on "
                "huggingface.co, or name another repository."
            )
        return str(info.sha)

    def head_or_create(self) -> str:
        """The newest commit of the repository. Creates a private repository if there is none."""
        head = self.head()
        if head is None:
            with self._errors() as api:
                api.create_repo(self.name, repo_type=REPO_TYPE, private=True, exist_ok=True)
            head = self.head()
        if head is None:
            raise MirrorError(f"The Hub does not show the dataset {self.name}. Check its name and the token.")
        return head

    def check_access(self) -> None:
        """Check that a lab can be saved here: the repository is private, and the token has write access. A person waits
        for it, so it has a deadline."""
        try:
            by_deadline(self._check_access)
        except HubSlowError as error:
            raise HubUnavailableError(f"the Hub cannot be reached ({error})") from None

    def _check_access(self) -> None:
        self.head_or_create()
        with self._errors() as api:
            api.auth_check(self.name, repo_type=REPO_TYPE, write=True)

    def files(self, commit: str) -> list[str]:
        """The paths of a commit's files, without those that the Hub adds itself."""
        with self._errors() as api:
            info = api.dataset_info(self.name, revision=commit, timeout=REQUEST_TIMEOUT_S)
        paths = [file.rfilename for file in info.siblings or ()]
        return [path for path in paths if path not in (".gitattributes", "README.md")]

    def download(self, commit: str, path: str, folder: Path) -> Path:
        """Download a file of a commit to the same path below a folder. Resumes a partial download."""
        with self._errors() as api:
            return Path(api.hf_hub_download(self.name, path, repo_type=REPO_TYPE, revision=commit, local_dir=folder))

    def commit(self, additions: Mapping[str, Path], deletions: Sequence[str], parent: str, message: str) -> str:
        """Commit files and return the new head.

        additions: path in the repository -> file. Raises MirrorConflictError if the head is no longer `parent`. After a
        HubUnavailableError the Hub may nevertheless have accepted the commit.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete

        with self._errors() as api:
            operations: list[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete] = [
                *(CommitOperationAdd(path, file) for path, file in additions.items()),
                *(CommitOperationDelete(path) for path in deletions),
            ]
            info = api.create_commit(
                self.name, operations, commit_message=message, repo_type=REPO_TYPE, parent_commit=parent
            )
        return str(info.oid)

    def squash(self, message: str) -> None:
        """Replace the history by one commit with the newest files."""
        with self._errors() as api:
            api.super_squash_history(self.name, repo_type=REPO_TYPE, commit_message=message)

    @contextmanager
    def _errors(self) -> Iterator["HfApi"]:
        """Yield the client, and raise its errors as those of this package."""
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()  # they would fill the log of a Space
        limit_waits(REQUEST_TIMEOUT_S)
        token = self._token or get_token()
        if token is None:
            raise MirrorError(
                f"There is no token for {self.name}. Make one with write access on huggingface.co under Settings → Access "
                f"Tokens. {WHERE_TO_PUT_A_TOKEN}"
            )
        try:
            yield HfApi(token=token)
        except HfHubHTTPError as error:
            raise self._http_error(error, token) from None  # the chained traceback may contain the token
        except HFValidationError as error:
            raise MirrorError(
                f'"{self.name}" is not a name on the Hub: {first_line(error, token)}. Write OWNER/NAME.'
            ) from None
        except MirrorError:
            raise
        except HubBusyError as error:
            raise HubUnavailableError("the Hub limits how often the lab may save", error.wait_s) from None
        except Exception as error:  # the client raises many different classes for a broken connection
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise MirrorError("The disk is full. Free some space.") from None
            log.debug("the client failed", exc_info=True)
            raise HubUnavailableError(
                f"the Hub cannot be reached ({first_line(error.__cause__ or error, token)})"
            ) from None

    def _http_error(self, error: "HfHubHTTPError", token: str) -> MirrorError:
        status, line = error.response.status_code, first_line(error, token)
        wait_s = retry_after_s(error.response.headers)
        if status == STALE_PARENT:
            return MirrorConflictError(f"somebody else has committed to {self.name}")
        if status == RATE_LIMIT:
            return HubUnavailableError("the Hub limits how often the lab may save", wait_s)
        if status >= 500 or status == 408:
            return HubUnavailableError(f"the Hub does not answer as it should (status {status})", wait_s)
        if status in (401, 403, 404):
            return MirrorError(
                f"The Hub refuses {self.name} to this token (status {status}). The token needs write access to it: make one on "
                f"huggingface.co under Settings → Access Tokens. {WHERE_TO_PUT_A_TOKEN}"
            )
        return MirrorError(f"The Hub refuses to save to {self.name}: {line}")
