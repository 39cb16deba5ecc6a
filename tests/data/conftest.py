import pytest

from easyr1.data.chat import Chat
from tests import tiny


@pytest.fixture(autouse=True)
def own_datasets_cache(tmp_path_factory, monkeypatch):
    """The datasets library copies what it reads into its cache: not into the user's."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets_cache"))


@pytest.fixture(scope="session")
def vision_folder(tmp_path_factory):
    return tiny.save("qwen2_5_vl", tmp_path_factory.mktemp("qwen2_5_vl"))


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    return tiny.save("qwen2", tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="session")
def vision_chat(vision_folder):
    return Chat.load(str(vision_folder))


@pytest.fixture(scope="session")
def text_chat(text_folder):
    return Chat.load(str(text_folder))
