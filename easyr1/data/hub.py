"""The door to the Hugging Face hub for what we publish."""

from pathlib import Path

from easyr1.errors import ConfigError


def upload(folder: Path, name: str) -> str:
    """Upload all files of `folder` to the model OWNER/NAME, made private if it is new. Returns its address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of whichever client the hub uses

    hub = HfApi()
    try:
        address = hub.create_repo(name, repo_type="model", private=True, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder)
    except (HTTPError, OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            "--hf_upload_path",
            f"{name} cannot be uploaded ({reason}); the model itself is complete in {folder}. HF_TOKEN or `hf auth "
            "login` gives access",
        ) from error
    return str(address)
