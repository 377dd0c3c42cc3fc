"""A fake Hugging Face Hub that serves local model folders, and one that records uploads."""

import json
import struct
from pathlib import Path
from types import SimpleNamespace

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 20,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip


def safetensors(path: Path, *shapes: list[int]) -> None:
    """Write a file of float32 zeros."""
    entries, offset = {"__metadata__": {"format": "pt"}}, 0
    for number, shape in enumerate(shapes):
        count = 1
        for size in shape:
            count *= size
        entries[f"t{number}"] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + 4 * count]}
        offset += 4 * count
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(offset))


def model(folder: Path, config: dict | None = None) -> Path:
    """Write the files of a model that are read without torch: about 1,000 parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config), encoding="utf-8")
    (folder / "tokenizer.json").write_text('{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}')
    safetensors(folder / "model.safetensors", [100, 8], [10, 20], [])
    return folder


class FakeHub:
    """Install with `use(monkeypatch)`. models: Hub id -> folder; error: raised by model_info and snapshot_download."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.models: dict[str, Path] = {}
        self.error: Exception | None = None
        self.asked: list[str] = []

    def use(self, monkeypatch) -> "FakeHub":
        monkeypatch.setattr("huggingface_hub.HfApi.model_info", self.model_info)
        monkeypatch.setattr("huggingface_hub.hf_hub_download", self.hf_hub_download)
        monkeypatch.setattr("huggingface_hub.get_safetensors_metadata", self.get_safetensors_metadata)
        monkeypatch.setattr("huggingface_hub.snapshot_download", self.snapshot_download)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(self.cache))
        return self

    def model_info(self, name, **_):
        self.asked.append(name)
        if self.error is not None:
            raise self.error
        files = [SimpleNamespace(rfilename=path.relative_to(self.models[name]).as_posix(), size=path.stat().st_size)
                 for path in self.models[name].rglob("*") if path.is_file()]  # fmt: skip
        return SimpleNamespace(sha="abc123", siblings=files)

    def hf_hub_download(self, name, file, *, revision):
        assert revision == "abc123"
        path = self.cache / "single files" / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((self.models[name] / file).read_bytes())
        return str(path)

    def get_safetensors_metadata(self, name, *, revision, timeout):
        assert revision == "abc123"
        return SimpleNamespace(parameter_count={"F32": 900, "BF16": 101})

    def folder(self, name: str) -> Path:
        return self.cache / f"models--{name.replace('/', '--')}"

    def snapshot_download(self, name, *, local_files_only=False, allow_patterns=None, tqdm_class=None, **_):
        snapshot = self.folder(name) / "snapshots" / "abc123"
        if local_files_only:
            if not snapshot.is_dir():
                raise FileNotFoundError(name)
            return str(snapshot)
        if self.error is not None:
            raise self.error
        snapshot.mkdir(parents=True, exist_ok=True)
        blobs = self.folder(name) / "blobs"
        blobs.mkdir(exist_ok=True)
        bar = tqdm_class(total=1)
        for file in allow_patterns:
            (blobs / file).write_bytes((self.models[name] / file).read_bytes())
            self.between(file)
            bar.update(1)
            (snapshot / file).write_bytes((blobs / file).read_bytes())
        return str(snapshot)

    def between(self, file: str) -> None:
        """Hook: called during the download of a file."""


class UploadHub:
    """Records what would be uploaded to the Hub."""

    def __init__(self, monkeypatch, error=None):
        self.calls, self.error, hub = [], error, self

        class Api:
            def __init__(self, token=None):
                hub.token = token

            def create_repo(self, name, **more):
                if hub.error:
                    raise hub.error
                hub.calls.append(("create", name, more))

            def upload_folder(self, **more):
                hub.calls.append(
                    ("upload", more["repo_id"], sorted(p.name for p in more["folder_path"].rglob("*") if p.is_file()))
                )

        monkeypatch.setattr("huggingface_hub.HfApi", Api)
