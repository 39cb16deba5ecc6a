"""`easyr1 env` tells what a bug report needs and hides what nobody else should see."""

import json
import platform

import torch

from easyr1.cli.env import collect, hidden
from easyr1.cli.main import main

SECRETS = {
    "HF_TOKEN": "hf_verysecret",
    "WANDB_API_KEY": "verysecret",
    "https_proxy": "http://me:verysecret@proxy.example:80",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "verysecret",
}


def test_it_names_versions_machine_and_variables(monkeypatch, capsys):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("MY_PASSWORD", "verysecret")
    assert main(["env", "--json"]) == 0
    shown = capsys.readouterr().out
    found = json.loads(shown)
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["python"].startswith(platform.python_version())
    assert {"vllm", "ray", "peft", "datasets", "transformers"} <= set(found["versions"])
    assert "GiB free" in found["disks"]["Hugging Face cache"] and "GiB" in found["machine"]["memory"]
    assert found["variables"]["CUDA_VISIBLE_DEVICES"] == "" and found["variables"]["HF_TOKEN"] == "set, hidden"
    assert "verysecret" not in shown and "MY_PASSWORD" not in shown and "proxy.example:80" in shown
    assert main(["env"]) == 0
    lines = capsys.readouterr().out
    assert f"  torch: {torch.__version__}" in lines and "verysecret" not in lines


def test_no_secret_is_shown_wherever_it_stands():
    shown = {
        "https_proxy": "http://me:very/se@cret@proxy:80",
        "HTTP_PROXY": "me:verysecret@proxy:80",
        "MLFLOW_TRACKING_URI": "https://me:verysecret@host/x?sig=verysecret&access_token=verysecret",
        "WANDB_NOTES": "with hf_verysecretverysecret",
        "VLLM_NOTES": "0123456789abcdef0123456789abcdef01234567",
        "HF_HUB_HEADERS": "Authorization: Basic c2VjcmV0",
        "RAY_NOTES": "Bearer verysecret",
    }
    for name, value in shown.items():
        found = hidden(name, value)
        assert not any(part in found for part in ("very", "cret", "abcdef", "c2Vj")), found
    for plain in (
        "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
        "/opt/cuda-12.9/lib64:/opt/x@y/lib",
        "mlx5_0:1,mlx5_1:1",
    ):
        assert hidden("NCCL_X", plain) == plain


def test_what_is_missing_or_broken_is_told(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)  # import torch fails
    monkeypatch.setenv("PATH", "")
    found = collect({})
    assert "does not load" in found["GPUs"]["torch"] and "nvidia-smi" in found["GPUs"]["0"]
    assert found["variables"] == {}
    assert hidden("TOKENIZERS_PARALLELISM", "false") == "false"


def test_a_version_outside_the_range_is_marked(monkeypatch):
    from easyr1.cli import env

    monkeypatch.setattr(env, "version_of", lambda name: "1.0" if name == "torch" else None)
    found = collect({})["versions"]
    assert "outside what easyr1 needs, >=" in found["torch"] and "outside" in found["transformers"]
    assert found["vllm"] == "not installed"
