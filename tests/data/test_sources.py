"""Every form of a data spec gives the same rows, and each bad one says what was found and what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from easyr1.data.sources import load_rows, parse_spec
from easyr1.errors import DataError
from tests import tiny

ROOT = Path(__file__).resolve().parents[2]


def answers(rows):
    return [rows[number]["answer"] for number in range(len(rows))]


@pytest.mark.parametrize("form", ["jsonl", "json", "parquet", "csv", "arrow"])
def test_every_file_type_gives_the_same_rows(tmp_path, form):
    path = tmp_path / f"rows.{form}"
    rows = [{"problem": f"p{number}", "answer": f"a{number}"} for number in range(3)]
    if form == "csv":
        path.write_text("problem,answer\n" + "".join(f"{row['problem']},{row['answer']}\n" for row in rows))
    elif form == "arrow":
        write_arrow(path, rows)
    else:
        tiny.write_rows(path, rows)

    loaded = load_rows(str(path))

    assert [loaded[number] for number in range(len(loaded))] == rows
    assert loaded.columns == ["problem", "answer"]
    assert loaded.folder == tmp_path


def write_arrow(path, rows):
    import pyarrow

    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("org/name", ("org/name", "train")),
        ("org/name@test", ("org/name", "test")),
        ("org/name@train[:10%]", ("org/name", "train[:10%]")),
        ("org/name@train.clean.360", ("org/name", "train.clean.360")),
        ("/data/a@b/rows.jsonl", ("/data/a@b/rows.jsonl", "train")),
        ("/data/a@b/rows.jsonl@test", ("/data/a@b/rows.jsonl", "test")),
        ("me@home.jsonl", ("me@home.jsonl", "train")),
    ],
)
def test_the_split_stands_behind_the_last_at(spec, expected):
    assert parse_spec(spec) == expected


def test_an_existing_path_with_an_at_is_a_path(tmp_path):
    folder = tmp_path / "runs@train"
    tiny.write_rows(folder / "rows.jsonl", tiny.text_rows(2))
    assert parse_spec(str(folder)) == (str(folder), "train")
    assert len(load_rows(f"{folder}@train")) == 2


@pytest.mark.parametrize("name", ["run #1 [x]", "a*b", "what?", "c,d"])
def test_names_with_signs_of_patterns_are_names(tmp_path, name):
    file = tiny.write_rows(tmp_path / name / f"{name}.jsonl", [{"problem": "p", "answer": "a"}])
    decoy = tmp_path / "axb"
    decoy.mkdir()
    tiny.write_rows(decoy / "axb.jsonl", [{"problem": "q", "answer": "b"}])
    for spec in (file, file.parent):
        assert answers(load_rows(str(spec))) == ["a"]


@pytest.mark.parametrize("spec", ["", "org/name@no split"])
def test_a_malformed_spec_is_told(spec):
    with pytest.raises(DataError, match=r"empty|no split name"):
        load_rows(spec)


def test_a_folder_is_read_by_its_data_files_alone(tmp_path):
    tiny.write_rows(tmp_path / "0.parquet", tiny.text_rows(3))
    (tmp_path / "README.md").write_text("# data")
    (tmp_path / ".gitattributes").write_text("*.parquet filter=lfs")
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / ".cache").mkdir()
    tiny.write_rows(tmp_path / ".cache" / "old.jsonl", tiny.text_rows(1))
    assert answers(load_rows(str(tmp_path))) == ["0", "2", "4"]


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train-0.jsonl", "test-0.jsonl"),
        ("train/part.jsonl", "test/part.jsonl"),
        ("my_training.jsonl", "my_eval.jsonl"),
        ("data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl"),
    ],
)
def test_splits_of_a_folder_are_told_by_names(tmp_path, train, test):
    tiny.write_rows(tmp_path / train, tiny.text_rows(3))
    tiny.write_rows(tmp_path / test, tiny.text_rows(1))
    assert len(load_rows(str(tmp_path))) == 3
    assert len(load_rows(f"{tmp_path}@test")) == 1
    assert load_rows(f"{tmp_path}@test").folder == (tmp_path / test).parent


def test_shards_in_a_folder_named_data_may_have_any_split(tmp_path):
    tiny.write_rows(tmp_path / "data" / "hard-00000-of-00002.jsonl", [{"answer": "first"}])
    tiny.write_rows(tmp_path / "data" / "hard-00001-of-00002.jsonl", [{"answer": "second"}])
    assert answers(load_rows(f"{tmp_path}@hard")) == ["first", "second"]


def test_several_files_of_a_split_are_read_in_the_order_of_their_names(tmp_path):
    tiny.write_rows(tmp_path / "b.jsonl", [{"answer": "second"}])
    tiny.write_rows(tmp_path / "a.jsonl", [{"answer": "first"}])
    assert answers(load_rows(str(tmp_path))) == ["first", "second"]
    assert answers(load_rows(f"{tmp_path}@train[1:]")) == ["second"]


def test_a_file_without_a_split_in_its_name_is_left_out_with_a_warning(tmp_path, caplog):
    tiny.write_rows(tmp_path / "train.jsonl", tiny.text_rows(2))
    tiny.write_rows(tmp_path / "extra.jsonl", tiny.text_rows(5))
    assert len(load_rows(str(tmp_path))) == 2
    assert "extra.jsonl" in caplog.text


def test_mixed_types_in_a_folder_are_listed(tmp_path):
    tiny.write_rows(tmp_path / "a.parquet", tiny.text_rows(1))
    tiny.write_rows(tmp_path / "b.jsonl", tiny.text_rows(1))
    tiny.write_rows(tmp_path / "c.jsonl", tiny.text_rows(1))
    with pytest.raises(DataError, match=r"2 \.jsonl, 1 \.parquet"):
        load_rows(str(tmp_path))


def test_an_unknown_split_lists_those_that_exist(tmp_path):
    path = tiny.write_rows(tmp_path / "test.jsonl", tiny.text_rows(1))
    with pytest.raises(DataError, match="no split 'nosuchsplit'; there is train"):
        load_rows(f"{path}@nosuchsplit")
    with pytest.raises(DataError, match="no split 'train'; there is test"):
        load_rows(str(tmp_path))


def test_a_saved_dataset_folder_is_read_in_both_forms(tmp_path):
    import datasets

    table = datasets.Dataset.from_list(tiny.text_rows(2))
    table.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"test": table}).save_to_disk(tmp_path / "many")
    assert len(load_rows(str(tmp_path / "one"))) == 2
    assert len(load_rows(f"{tmp_path / 'many'}@test")) == 2
    with pytest.raises(DataError, match="there is test"):
        load_rows(str(tmp_path / "many"))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("rows.jsonl", b'{"a": 1}\n{"a":', "cannot be read"),
        ("rows.parquet", b"not parquet", "cannot be read"),
        ("rows.jsonl", b"", "empty"),
        ("rows.csv", b"problem,answer\n", "no data"),
        ("rows.txt", b"text", "not known"),
        ("README.md", b"text", "no data file"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_name(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_bytes(content)
    spec = str(tmp_path if name == "README.md" else path)
    with pytest.raises(DataError, match=expected) as told:
        load_rows(spec)
    assert spec in str(told.value)


def test_a_missing_file_is_told_without_asking_the_hub(tmp_path):
    with pytest.raises(DataError, match="no file or folder"):
        load_rows(str(tmp_path / "nosuch.parquet"))
    with pytest.raises(DataError, match="no file or folder"):
        load_rows("nosuch.parquet")


def test_a_hub_name_without_a_network_is_told_with_the_cures():
    """In a process of its own, as the hub's library reads its switches at import."""
    code = "from easyr1.data.sources import load_rows; load_rows('nosuch-org/nosuch-name')"
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=ROOT)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("easyr1.errors.DataError: nosuch-org/nosuch-name")
    assert all(cure in last for cure in ("HF_ENDPOINT", "HF_HUB_OFFLINE", "local path"))


def test_picture_columns_stay_as_stored(tmp_path):
    import datasets

    features = datasets.Features({"one": datasets.Image(), "many": datasets.List(datasets.Image())})
    picture = tiny.picture()
    table = datasets.Dataset.from_list([{"one": picture, "many": [picture, picture]}], features=features)
    table.to_parquet(tmp_path / "rows.parquet")
    row = load_rows(str(tmp_path / "rows.parquet"))[0]
    assert row["one"]["bytes"].startswith(b"\x89PNG")
    assert [item["bytes"] for item in row["many"]] == [row["one"]["bytes"]] * 2


def test_values_of_mixed_types_keep_their_types(tmp_path):
    path = tmp_path / "rows.jsonl"
    values = [1, "x", [1, 2], None, {"a": 0.5}]
    path.write_text("".join(json.dumps({"answer": value}) + "\n" for value in values))
    assert answers(load_rows(str(path))) == values


def test_a_missing_column_is_told_with_the_columns_and_the_nearest(tmp_path):
    rows = load_rows(str(tiny.write_rows(tmp_path / "rows.jsonl", tiny.text_rows(1))))
    rows.require("problem", "data.prompt_key")
    with pytest.raises(DataError, match=r"'problm' \(data.prompt_key\).*problem, answer, level.*mean 'problem'"):
        rows.require("problm", "data.prompt_key")
