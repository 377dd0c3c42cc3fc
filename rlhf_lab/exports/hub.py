"""A folder to the Hugging Face Hub. The token is used and forgotten: it is written nowhere and stands in no message."""

from pathlib import Path

from rlhf_lab.errors import DataError


def push_folder(
    folder: Path, name: str, *, kind: str = "dataset", private: bool = True, token: str | None = None
) -> str:
    """Make the repository OWNER/NAME if it is missing, send every file of the folder; returns its address.

    kind: "dataset" or "model". token: None takes HF_TOKEN or the stored login, as the Hub's own tools do.
    Raises DataError: no such name, no network, or a token that may not write there.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if name.count("/") != 1 or not all(name.split("/")):
        raise DataError(
            f'"{name}" is no name on the Hub. Write OWNER/NAME, OWNER being your user or organisation there.'
        )
    api = HfApi(token=token)
    try:
        api.create_repo(name, repo_type=kind, private=private, exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id=name, repo_type=kind, commit_message="Upload from RLHF Lab")
    except HFValidationError as error:
        raise DataError(f'"{name}" is no name on the Hub: {_first_line(error, token)}. Write OWNER/NAME.') from None
    except (HfHubHTTPError, OSError) as error:
        raise DataError(
            f"{name} could not be sent to the Hub: {_first_line(error, token)}. Check the network and that you are logged in "
            "with a token that may write there (HF_TOKEN, or `hf auth login`). The files are still in the folder."
        ) from None  # its traceback may hold the request
    return f"https://huggingface.co/{'datasets/' if kind == 'dataset' else ''}{name}"


def _first_line(error: Exception, token: str | None) -> str:
    words = (str(error).strip() or type(error).__name__).split("\n", 1)[0][:300]
    return words.replace(token, "…") if token else words
