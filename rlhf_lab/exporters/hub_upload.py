"""Upload of a folder to the Hugging Face Hub. The token is never stored, and never part of a message."""

import time
from pathlib import Path

from rlhf_lab.common.hub_errors import HubBusyError, first_line, limit_waits
from rlhf_lab.errors import DataError


def push_folder(
    folder: Path, repo_id: str, *, repo_type: str = "dataset", private: bool = True, token: str | None = None
) -> str:
    """Upload every file of the folder to OWNER/NAME, which is created if missing; returns its address.

    Args:
        repo_type: "dataset" or "model".
        token: None: HF_TOKEN or the stored login, as in the Hub's own tools.

    Raises:
        DataError: invalid name, no network, no write access, or the Hub asks to wait for long.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise DataError(
            f'"{repo_id}" is not a name on the Hub. Write OWNER/NAME, OWNER being your user or organisation there.'
        )
    api = HfApi(token=token)
    limit_waits()
    try:
        api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True)
        api.upload_folder(
            folder_path=folder, repo_id=repo_id, repo_type=repo_type, commit_message="Upload from RLHF Lab"
        )
    except HFValidationError as error:
        raise DataError(
            f'"{repo_id}" is not a name on the Hub: {first_line(error, token)}. Write OWNER/NAME.'
        ) from None
    except HubBusyError as error:
        again = time.strftime("%H:%M", time.localtime(time.time() + error.wait_s))
        raise DataError(
            f"The Hub limits how often files may be sent to {repo_id}: it asks to wait for {error.wait_s / 60:,.0f} minutes. "
            f"Send them again after {again}. The files are still in the folder."
        ) from None
    except (HfHubHTTPError, OSError) as error:
        raise DataError(
            f"{repo_id} could not be sent to the Hub: {first_line(error, token)}. Check the network and that you are "
            "logged in with a token that may write there (HF_TOKEN, or `hf auth login`). The files are still in the folder."
        ) from None  # the chained traceback may contain the token
    return f"https://huggingface.co/{'datasets/' if repo_type == 'dataset' else ''}{repo_id}"
