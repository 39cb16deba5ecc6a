"""Every row is checked and measured before training; what is dropped is counted, what is wrong is named."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from easyr1.data.dataset import Columns, Limits, load_prompts
from easyr1.errors import ConfigError, DataError
from tests import tiny

GEOMETRY3K = Path(
    os.environ.get("EASYR1_GEOMETRY3K", Path(__file__).resolve().parents[3] / "shared" / "data" / "geometry3k-mini")
)
LOW, HIGH = 262144, 4194304


def load(path, chat, limit=512, **options):
    media = options.pop("media", chat.media_store())
    filter_overlong = options.pop("filter_overlong", True)
    specs = [str(each) for each in path] if isinstance(path, list) else str(path)
    return load_prompts(specs, chat, media, Limits(limit, filter_overlong), **options)


def row(problem="What?", answer="1", **columns):
    return {"problem": problem, "answer": answer} | columns


@pytest.mark.parametrize("form", ["parquet", "jsonl", "json"])
def test_prompts_carry_ids_pictures_answer_and_all_other_columns(tmp_path, vision_chat, form):
    rows = [line | {"tags": [1, 2], "meta": {"a": "b"}} for line in tiny.vision_rows(4, pictures_per_row=2)]
    media = vision_chat.media_store()
    prompts = load(tiny.write_rows(tmp_path / f"rows.{form}", rows), vision_chat, media=media)

    assert [prompt.row for prompt in prompts] == [0, 1, 2, 3]
    prompt = prompts[-1]
    pictures = [media.add(picture) for picture in rows[3]["images"]]
    ids, text = vision_chat.encode(rows[3]["problem"], pictures)
    assert np.array_equal(prompt.ids, ids)
    assert (prompt.ids.dtype, prompt.text) == (np.int64, text)
    assert prompt.media == tuple(picture.handle for picture in pictures)
    assert prompt.ground_truth == rows[3]["answer"]
    sizes = prompt.columns["image_sizes"], prompt.columns["model_image_sizes"]
    assert sizes == ([picture.size for picture in pictures], [picture.fitted for picture in pictures])
    own = {name: value for name, value in prompt.columns.items() if not name.endswith("image_sizes")}
    assert own == {"level": 3, "tags": [1, 2], "meta": {"a": "b"}}
    assert type(prompt.columns["level"]) is int
    assert prompt.source == str(tmp_path / f"rows.{form}")
    grids = [media.inputs(handle)["image_grid_thw"] for handle in prompt.media]
    assert (prompt.ids == vision_chat.image_token_id).sum() == sum(grid.prod() // 4 for grid in grids)
    assert pickle.loads(pickle.dumps(prompt)).text == text


def test_answers_are_left_as_they_are(tmp_path, text_chat):
    answers = [5, "x", 5.5, ["a", "b"], {"x": 1}, ""]
    path = tiny.write_rows(tmp_path / "rows.jsonl", [row(answer=answer) for answer in answers])
    found = [prompt.ground_truth for prompt in load(path, text_chat)]
    assert found == answers
    assert [type(answer) for answer in found] == [type(answer) for answer in answers]


def test_keys_name_the_columns(tmp_path, vision_chat):
    rows = [{"q": "<image>?", "a": "1", "pics": [tiny.picture()], "problem": "other"}]
    path = tmp_path / "rows.jsonl"
    rows[0]["pics"][0].save(tmp_path / "a.png")
    path.write_text(json.dumps(rows[0] | {"pics": "a.png"}))
    (prompt,) = load(path, vision_chat, columns=Columns("q", "a", "pics"))
    assert len(prompt.media) == 1
    assert prompt.columns["problem"] == "other" and "q" not in prompt.columns


@pytest.mark.parametrize("as_table", [False, True])
def test_rows_without_pictures_among_rows_with_pictures(tmp_path, vision_chat, as_table):
    """None, NaN, [] and no column at all; as pandas joins them and as lines of JSON."""
    picture = tiny.picture()
    if as_table:
        import pandas

        with_pictures = pandas.read_parquet(tiny.write_rows(tmp_path / "a.parquet", tiny.vision_rows(2)))
        pandas.concat([with_pictures, pandas.DataFrame(tiny.text_rows(2))]).to_parquet(tmp_path / "rows.parquet")
        path, expected = tmp_path / "rows.parquet", [1, 1, 0, 0]
    else:
        rows = [row("<image>", images=[picture]), row(images=None), row(images=[]), row()]
        path, expected = tiny.write_rows(tmp_path / "rows.jsonl", rows), [1, 0, 0, 0]
    assert [len(prompt.media) for prompt in load(path, vision_chat)] == expected


def test_a_column_of_nan_alone_means_no_pictures(tmp_path, vision_chat, text_chat):
    path = tiny.write_rows(tmp_path / "rows.parquet", [row(images=float("nan")), row(images=float("nan"))])
    for chat in (vision_chat, text_chat):
        assert [prompt.media for prompt in load(path, chat)] == [(), ()]


def test_one_picture_need_not_stand_in_a_list(tmp_path, vision_chat):
    import datasets

    features = datasets.Features(
        {"problem": datasets.Value("string"), "answer": datasets.Value("string"), "images": datasets.Image()}
    )
    rows = [row("<image>", images=tiny.picture()), row(images=None)]
    datasets.Dataset.from_list(rows, features=features).to_parquet(tmp_path / "rows.parquet")
    assert [len(prompt.media) for prompt in load(tmp_path / "rows.parquet", vision_chat)] == [1, 0]


def test_raw_bytes_and_image_dir(tmp_path, vision_chat):
    tiny.picture().save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    (tmp_path / "sub").mkdir()
    in_table = tiny.write_rows(tmp_path / "sub" / "bytes.parquet", [row("<image>", images=[data])])
    by_path = tiny.write_rows(tmp_path / "sub" / "paths.parquet", [row("<image>", images=["a.png"])])
    (first,) = load(in_table, vision_chat)
    (second,) = load(by_path, vision_chat, image_dir=tmp_path)
    assert first.media == second.media
    with pytest.raises(DataError, match=r"sub/a\.png: No such file"):
        load(by_path, vision_chat)
    with pytest.raises(ConfigError, match=r"data\.image_dir: there is no folder"):
        load(by_path, vision_chat, image_dir=tmp_path / "nosuch")


def test_pictures_in_a_table_are_read_again_from_the_table(tmp_path, vision_chat):
    media = vision_chat.media_store()
    prompts = load(tiny.write_rows(tmp_path / "rows.parquet", tiny.vision_rows(3, 2)), vision_chat, media=media)
    for prompt, line in zip(prompts, tiny.vision_rows(3, 2), strict=True):
        for handle, picture in zip(prompt.media, line["images"], strict=True):
            assert media.image(handle).tobytes() == picture.resize(media.picture(handle).fitted, 3).tobytes()


def write_long_and_short(tmp_path):
    rows = [
        row("<image>How many circles are there?", images=[tiny.picture(640, 480)]),
        row("<image>", images=[Image.new("L", (56, 56))]),
    ]
    return tiny.write_rows(tmp_path / "rows.jsonl", rows)


def test_what_is_too_long_is_dropped_and_counted(tmp_path, vision_chat, caplog):
    path = write_long_and_short(tmp_path)
    caplog.set_level("INFO")
    prompts = load(path, vision_chat, 300, media=vision_chat.media_store(3136, HIGH))
    assert [prompt.row for prompt in prompts] == [1]
    report = prompts.report
    assert str(report).startswith("kept 1 of 2, dropped 1 over-long (longest 4")
    assert str(report) in caplog.text
    assert (report.kept, report.dropped, report.limit, report.max_pictures) == (1, {"over-long": 1}, 300, 1)
    assert report.longest > 391
    assert report.percentiles["p100"] == len(prompts[0].ids)


def test_what_is_too_long_stops_the_run_where_it_is_not_filtered(tmp_path, vision_chat):
    path = write_long_and_short(tmp_path)
    media = vision_chat.media_store(3136, HIGH)
    with pytest.raises(DataError) as told:
        load(path, vision_chat, 300, media=media, filter_overlong=False)
    message = str(told.value)
    assert "row 0: the prompt needs 4" in message
    assert "391 of them for 1 pictures" in message
    assert "data.max_prompt_length is 300" in message
    assert "data.max_pixels" in message
    longest = load(path, vision_chat, 3000, media=media).report.longest
    assert len(load(path, vision_chat, longest, media=media, filter_overlong=False)) == 2


def test_nothing_left_stops_with_the_reasons(tmp_path, vision_chat):
    with pytest.raises(DataError, match=r"no row is left: kept 0 of 2, dropped 2 over-long.*shortest prompt has \d+"):
        load(write_long_and_short(tmp_path), vision_chat, 3)


def test_several_files_with_different_columns_are_one_set(tmp_path, vision_chat):
    first = tiny.write_rows(tmp_path / "a.parquet", tiny.vision_rows(2))
    second = tiny.write_rows(tmp_path / "b.jsonl", [row(extra="x"), row(problem="a" * 400)])
    done = []
    prompts = load([first, second], vision_chat, 100, progress=lambda *numbers: done.append(numbers))
    assert [(Path(prompt.source).name, prompt.row) for prompt in prompts] == [
        ("a.parquet", 0),
        ("a.parquet", 1),
        ("b.jsonl", 0),
    ]
    assert "level" in prompts[1].columns and sorted(prompts[2].columns) == ["extra"]
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]


GOOD = [row(images=None), row(images=None)]


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (row(answer=None), r"row 2: column 'answer' \(data.answer_key\): it is empty"),
        (row(problem=None), r"row 2: column 'problem' \(data.prompt_key\): a prompt is a text"),
        (row("<image><image>", images=["ok.png"]), r"row 2: column 'problem' .*placeholders: 2, pictures: 1"),
        (row("<image>", images=[]), r"row 2: .*placeholders: 1, pictures: 0"),
        (row("a", images=["ok.png"]), r"row 2: .*placeholders: 0, pictures: 1"),
        (row("<image><|image_pad|>", images=["ok.png"]), r"row 2: .*<\|image_pad\|>"),
        (
            row("<image>" * 2, images=["ok.png", "half.png"]),
            r"row 2: column 'images' .*item 1: .*half\.png: not a whole",
        ),
        (row("<image>", images=["nosuch.png"]), r"row 2: column 'images' .*item 0: .*nosuch\.png: No such file"),
        (row("<image>", images=["long.png"]), r"row 2: .*long\.png: 900x3 pixels"),
        (row("<image>", images=[None]), r"row 2: .*item 0: a picture must be"),
        (
            row(videos=["a.mp4"]),
            r"row 2: column 'videos' .*item 0: .*a\.mp4: (video files need PyAV|there is no such)",
        ),
        (row("<video>", videos=[]), r"row 2: .*<video> placeholders: 1, videos: 0"),
        (row("<video>" * 2, videos=[["ok.png"]]), r"row 2: .*<video> placeholders: 2, videos: 1"),
        (row("<video>", videos=[["nosuch.png"]]), r"row 2: column 'videos' .*item 0: .*nosuch\.png: No such file"),
        (row("<video><|video_pad|>", videos=[["ok.png"]]), r"row 2: .*<\|video_pad\|>"),
    ],
)
def test_a_bad_row_is_named_with_its_column(tmp_path, vision_chat, bad, expected):
    tiny.picture().save(tmp_path / "ok.png")
    tiny.picture(200, 200).save(tmp_path / "half.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "half.png").read_bytes()[:500])
    tiny.picture(900, 3).save(tmp_path / "long.png")
    path = tiny.write_rows(tmp_path / "rows.jsonl", [*GOOD, bad, row(answer=None)])
    with pytest.raises(DataError, match=expected) as told:
        load(path, vision_chat)
    assert str(told.value).startswith(str(path))


def test_pictures_need_a_model_that_sees(tmp_path, text_chat):
    path = tiny.write_rows(tmp_path / "rows.jsonl", tiny.vision_rows(2))
    with pytest.raises(DataError, match=r"row 0: .*text model"):
        load(path, text_chat)


def test_missing_columns_are_told_before_any_row_is_read(tmp_path, vision_chat):
    path = tiny.write_rows(tmp_path / "rows.jsonl", [{"problem": "<image>", "label": "1", "picture": []}])
    with pytest.raises(DataError, match=r"no column 'answer' \(data.answer_key\).*problem, label, picture"):
        load(path, vision_chat)
    with pytest.raises(DataError, match=r"no column 'images'.*data.image_key.*problem, label, picture"):
        load(path, vision_chat, columns=Columns(answer="label"))


def test_conversations_are_prompts(tmp_path, text_chat):
    turns = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What?"}]
    (prompt,) = load(tiny.write_rows(tmp_path / "rows.parquet", [row(turns)]), text_chat)
    assert prompt.text.startswith("<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nWhat?<|im_end|>")


@pytest.mark.skipif(not GEOMETRY3K.is_dir(), reason="no geometry3k-mini beside the repository (EASYR1_GEOMETRY3K)")
def test_real_geometry_pictures(vision_chat):
    media = vision_chat.media_store(LOW, HIGH)
    prompts = load(GEOMETRY3K / "train.jsonl", vision_chat, 2048, media=media)
    assert len(prompts) == len(media) == 10
    assert prompts.report.max_pictures == 1
    for prompt in prompts:
        (handle,) = prompt.media
        grid = media.inputs(handle)["image_grid_thw"]
        assert (prompt.ids == vision_chat.image_token_id).sum() == grid.prod() // 4
        assert np.asarray(media.image(handle)).mean() > 220  # thin drawings on transparent, so white, ground
        assert "choices" in prompt.columns


def test_pictures_and_videos_of_a_row_stand_in_the_order_of_their_placeholders(tmp_path, vision_chat):
    for seed in range(6):
        tiny.picture(seed=seed).save(tmp_path / f"{seed}.png")
    rows = [
        row("<video>a<image>b<video>c<image>", images=["0.png", "1.png"], videos=[["2.png", "3.png"], ["4.png"]]),
        row("<image>", images=["5.png"], videos=None),
        row("no media", images=[], videos=[]),
        row("<video>", images=None, videos=[{"frames": ["0.png"] * 8, "fps": 4.0}]),
    ]
    media = vision_chat.media_store()
    prompts = load(tiny.write_rows(tmp_path / "rows.jsonl", rows), vision_chat, media=media)
    kinds = [[media.picture(handle).is_video for handle in prompt.media] for prompt in prompts]
    assert kinds == [[True, False, True, False], [False], [], [True]]
    mixed = prompts[0]
    assert mixed.text.count("<|video_pad|>") == mixed.text.count("<|image_pad|>") == 2
    assert len(mixed.columns["image_sizes"]) == 2
    pads = {tiny.token_id(f"<|{kind}_pad|>"): kind for kind in ("image", "video")}
    found = [pads[token] for token in mixed.ids.tolist() if token in pads]
    assert found == ["video"] * 4 + ["image"] * 4 + ["video"] * 4 + ["image"] * 4
    assert (prompts.report.max_pictures, prompts.report.max_videos) == (2, 2)
    assert (prompts[3].ids == tiny.token_id("<|video_pad|>")).sum() == 2 * 4  # 4 frames of 2 seconds


def test_a_text_model_takes_the_word_video_as_text(tmp_path, text_chat):
    (prompt,) = load(tiny.write_rows(tmp_path / "rows.jsonl", [row("What does <video> do?")]), text_chat)
    assert "<video>" in prompt.text


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_second_run_reads_no_header_again(tmp_path, vision_chat, monkeypatch, form):
    from easyr1.data.heads import Heads

    path = tiny.write_rows(tmp_path / f"rows.{form}", tiny.vision_rows(3, 2))
    for file in tmp_path.rglob("*.*"):
        os.utime(file, ns=(0, file.stat().st_mtime_ns - 10**11))

    def prompts():
        media = vision_chat.media_store(heads=Heads(tmp_path / "cache"))
        found = load(path, vision_chat, media=media)
        return [(prompt.ids.tolist(), prompt.media) for prompt in found], media

    first, _ = prompts()
    monkeypatch.setattr("easyr1.data.media.upright_size", None)
    again, media = prompts()
    assert again == first
    assert media.inputs(again[0][1][0])["pixel_values"].shape[0] > 0


def test_a_broken_body_is_no_matter_before_it_is_needed(tmp_path, vision_chat):
    tiny.picture(200, 200).save(tmp_path / "bad.png")
    data = (tmp_path / "bad.png").read_bytes()
    place = data.index(b"IDAT") + 60
    (tmp_path / "bad.png").write_bytes(data[:place] + bytes(200) + data[place + 200 :])
    media = vision_chat.media_store()
    path = tiny.write_rows(tmp_path / "rows.jsonl", [row("<image>", images=["bad.png"])])
    (prompt,) = load(path, vision_chat, media=media)
    with pytest.raises(
        DataError, match=r"rows\.jsonl, row 0: column 'images': item 0: picture .*bad\.png: not a whole"
    ):
        media.inputs(prompt.media[0])


def saved(path, image, **options):
    image.save(path, **options)
    return str(path)


def odd_pictures():
    """Name -> (picture, how it is saved, size, colour in the middle) as people have them."""
    red = (200, 30, 60)
    turned = Image.Exif()
    turned[0x0112] = 6
    return {
        "rgb.png": (Image.new("RGB", (60, 40), red), {}, (60, 40), red),
        "turned.jpg": (Image.new("RGB", (60, 40), "white"), {"exif": turned}, (40, 60), (255, 255, 255)),
        "palette.gif": (Image.new("RGB", (60, 40), "blue").convert("P"), {}, (60, 40), (0, 0, 255)),
        "alpha.png": (Image.new("RGBA", (60, 40), (0, 0, 0, 51)), {}, (60, 40), (204, 204, 204)),
        "ink.tiff": (Image.new("CMYK", (60, 40), (0, 255, 255, 0)), {}, (60, 40), (255, 0, 0)),
        "deep.png": (Image.new("I;16", (60, 40), 257 * 77), {}, (60, 40), (77, 77, 77)),
        "bits.png": (Image.new("1", (60, 40), 1), {}, (60, 40), (255, 255, 255)),
        "dot.png": (Image.new("RGB", (1, 1), red), {}, (1, 1), red),
        "strip.png": (Image.new("RGB", (3, 23), red), {}, (3, 23), red),
    }


@pytest.mark.parametrize("name", [*odd_pictures()])
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_odd_pictures_are_what_a_person_sees(tmp_path, vision_chat, name, form):
    image, options, size, colour = odd_pictures()[name]
    file = saved(tmp_path / name, image, **options)
    given = name if form == "jsonl" else {"bytes": Path(file).read_bytes(), "path": name}
    media = vision_chat.media_store()
    path = tiny.write_rows(tmp_path / f"rows.{form}", [row("<image>?", images=[given])])
    (prompt,) = load(path, vision_chat, media=media)
    seen = media.image(prompt.media[0])
    assert prompt.columns["image_sizes"] == [size]
    assert seen.size == media.picture(prompt.media[0]).fitted
    assert seen.getpixel((seen.width // 2, seen.height // 2)) == colour
    assert (prompt.ids == vision_chat.image_token_id).sum() == media.inputs(prompt.media[0])[
        "image_grid_thw"
    ].prod() // 4


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        ("long.png", Image.new("RGB", (900, 3)), "900x3 pixels"),
        ("float.tiff", Image.new("F", (9, 9)), "floating-point"),
        ("bomb.png", Image.new("1", (3000, 3000)), "3000x3000 pixels is more than|exceeds limit"),
        ("half.jpg", tiny.picture(300, 300), "not a whole picture"),
        ("half.png", tiny.picture(300, 300), "not a whole picture"),
    ],
)
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_what_cannot_be_seen_is_one_error_with_row_and_file(
    tmp_path, vision_chat, monkeypatch, name, image, expected, form
):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5_000_000)
    tiny.picture().save(tmp_path / "ok.png")
    file = Path(saved(tmp_path / name, image))
    if name.startswith("half"):
        file.write_bytes(file.read_bytes()[:-300])
    given = name if form == "jsonl" else {"bytes": file.read_bytes(), "path": name}
    good = {"bytes": (tmp_path / "ok.png").read_bytes(), "path": "ok.png"} if form == "parquet" else "ok.png"
    path = tiny.write_rows(tmp_path / f"rows.{form}", [row("<image>", images=[good]), row("<image>", images=[given])])
    with pytest.raises(DataError, match=rf"rows\.{form}, row 1: column 'images' .*item 0: .*{name}: .*({expected})"):
        load(path, vision_chat)


def test_one_video_as_bare_frames_in_bytes_is_read_again_whole(tmp_path, vision_chat):
    frames = [tiny._picture_bytes(tiny.picture(seed=seed), "")["bytes"] for seed in range(4)]
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"problem": ["<video>x"], "answer": ["1"], "videos": [frames]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    store = vision_chat.media_store(tiny.MIN_PIXELS, tiny.MAX_PIXELS)
    (prompt,) = load_prompts(str(tmp_path / "rows.parquet"), vision_chat, store, Limits(500))
    assert store.problem(prompt.media[0]) is None
    assert store.inputs(prompt.media[0])["video_grid_thw"].tolist() == [[2, 4, 4]]
