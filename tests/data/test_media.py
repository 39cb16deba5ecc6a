"""Pictures of every form and mode give right pixels, the numbers of the processor, and errors that name the file."""

import io
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import datasets
import numpy as np
import pytest
from PIL import Image
from ray import cloudpickle

from easyr1.data import media
from easyr1.data.dataset import Limits, load_prompts
from easyr1.data.decode import open_upright
from easyr1.data.heads import Head, Heads
from easyr1.data.media import MediaStore
from easyr1.data.processor import GridReader, fit, patch_rule
from easyr1.data.video import VideoReader
from easyr1.errors import ConfigError, DataError
from tests import tiny

LOW, HIGH = 262144, 4194304  # the default pixel limits of a configuration


def encoded(image, form="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, format=form, **options)
    return buffer.getvalue()


def store(cache_bytes=1 << 30, decoded_bytes=1 << 30, **limits):
    return MediaStore(GridReader(tiny.image_processor("qwen2_5_vl"), token=6, **limits), cache_bytes, decoded_bytes)


@pytest.mark.parametrize(
    ("size", "tokens"), [((10, 10), 361), ((640, 480), 391), ((4000, 3000), 5292), ((1, 1), 361), ((56, 56), 361)]
)
def test_numbers_of_tokens_at_the_default_limits(size, tokens):
    width, height = fit(*size, patch_rule(tiny.image_processor("qwen2_5_vl"), LOW, HIGH))
    assert (width // 28) * (height // 28) == tokens


def test_limits_that_are_not_given_are_the_processors_own():
    rule = patch_rule(tiny.image_processor("qwen2_5_vl", min_pixels=3136, max_pixels=12845056))
    assert fit(3, 23, rule) == (2 * 14, 12 * 14)


@pytest.mark.parametrize("kind", tiny.VISION_KINDS)
@pytest.mark.parametrize("size", [(10, 10), (640, 480), (1, 1), (3, 23), (1000, 37)])
def test_pixels_are_bitwise_those_of_the_processor_given_the_limits(kind, size):
    picture = tiny.picture(*size, seed=3)
    ours = MediaStore(GridReader(tiny.image_processor(kind), 6, LOW, HIGH))
    added = ours.add(picture)
    inputs = ours.inputs(added.handle)
    expected = tiny.image_processor(kind, min_pixels=LOW, max_pixels=HIGH)(images=[picture], return_tensors="np")

    assert np.array_equal(inputs["pixel_values"], expected["pixel_values"])
    assert np.array_equal(inputs["image_grid_thw"], expected["image_grid_thw"])
    assert inputs["pixel_values"].dtype == np.float32
    assert inputs["image_grid_thw"].dtype == np.int64
    assert added.num_tokens == ours.num_tokens(added.handle) == expected["image_grid_thw"].prod() // 4
    assert (added.size, ours.image(added.handle).size) == (size, added.fitted)


def test_every_form_of_a_picture_is_one_picture(tmp_path):
    picture = tiny.picture(40, 30)
    data = encoded(picture)
    (tmp_path / "a.png").write_bytes(data)
    ours = store()
    forms = [
        "a.png",
        tmp_path / "a.png",
        data,
        bytearray(data),
        {"bytes": data, "path": None},
        {"bytes": None, "path": "a.png"},
        {"bytes": data, "path": "elsewhere.png"},
        Image.open(tmp_path / "a.png"),
    ]
    handles = {ours.add(form, tmp_path).handle for form in forms}
    assert len(handles) == len(ours) == 1
    assert np.array_equal(np.asarray(open_upright(data)), np.asarray(picture))


def test_a_handle_belongs_to_content_and_limits():
    data = encoded(tiny.picture())
    handle = store().add(data).handle
    assert handle == store().add(data).handle
    assert handle != store(max_pixels=28 * 28 * 8).add(data).handle
    assert handle != store().add(encoded(tiny.picture(seed=1))).handle


@pytest.mark.parametrize("as_file", [True, False])
def test_a_picture_is_kept_upright_and_at_its_fitted_size(as_file):
    picture = tiny.picture(84, 28)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter to the left; shown upright it is turned to the right
    data = encoded(picture, exif=exif)
    ours = store()
    added = ours.add(data if as_file else Image.open(io.BytesIO(data)))
    upright = picture.transpose(Image.Transpose.ROTATE_270)
    assert added.size == (28, 84)
    assert ours.image(added.handle).tobytes() == upright.resize(added.fitted, Image.Resampling.BICUBIC).tobytes()


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("nosuch.png", "nosuch.png: No such file.*image_dir"),
        ("/nosuch.png", "/nosuch.png: No such file"),
        ("https://host/a.png", "https://host/a.png.*download"),
        (b"<html>not found</html>", "format that Pillow reads.*<html>"),
        ({"bytes": b"<html>", "path": "row7.png"}, "row7.png"),
        ({"bytes": None, "path": None}, "a picture must be a path"),
        (None, "a picture must be a path"),
        (7, "a picture must be a path"),
        (Image.new("F", (4, 4)), "floating-point"),
        (Image.new("RGB", (900, 3)), "900x3 pixels.*aspect ratio.*200"),
    ],
)
def test_what_cannot_be_used_is_told(tmp_path, image, expected):
    with pytest.raises(DataError, match=expected):
        store().add(image, tmp_path)


def test_limits_that_exclude_each_other_and_foreign_processors_are_refused():
    with pytest.raises(ConfigError, match=r"data.min_pixels: 5000 is above data.max_pixels, 4000"):
        store(min_pixels=5000, max_pixels=4000)
    import transformers

    with pytest.raises(DataError, match="CLIPImageProcessorPil does not resize as"):
        GridReader(transformers.CLIPImageProcessorPil(), token=6)


def test_the_cache_holds_the_pictures_used_last_within_its_bytes():
    one = 16 * 1176 * 4 + 24  # bytes of a picture of 56x56 pixels
    ours = store(cache_bytes=2 * one)
    a, b, c = (ours.add(tiny.picture(seed=seed)).handle for seed in range(3))
    first = {handle: ours.inputs(handle) for handle in (a, b)}
    assert ours.inputs(a) is first[a]
    ours.inputs(c)  # b was used least recently
    assert ours.inputs(a) is first[a]
    assert ours.inputs(b) is not first[b]
    assert np.array_equal(ours.inputs(b)["pixel_values"], first[b]["pixel_values"])


def test_a_file_is_read_again_rather_than_held(tmp_path):
    tiny.picture().save(tmp_path / "a.png")
    ours = store()
    handle = ours.add("a.png", tmp_path).handle
    (tmp_path / "a.png").unlink()
    with pytest.raises(DataError, match=r"a\.png: No such file"):
        ours.inputs(handle)


def test_bytes_are_read_again_rather_than_held():
    reads = []
    data = encoded(tiny.picture())

    def reread():
        reads.append(1)
        return data

    ours = store(cache_bytes=0)
    handle = ours.add(data, reread=reread).handle
    assert not reads
    ours.inputs(handle)
    assert reads


def test_threads_get_the_same_inputs():
    ours = store(cache_bytes=16 * 1176 * 4 * 3)
    data = [encoded(tiny.picture(seed=seed % 7)) for seed in range(70)]
    with ThreadPoolExecutor(4) as threads:
        added = list(threads.map(ours.add, data))
        inputs = list(threads.map(ours.inputs, [picture.handle for picture in added]))
    assert len(ours) == 7
    for seed, arrays in enumerate(inputs):
        assert np.array_equal(arrays["pixel_values"], ours.inputs(added[seed % 7].handle)["pixel_values"])
    kept = ours._inputs._kept.values()
    assert 0 < ours._inputs.num_bytes == sum(array.nbytes for arrays in kept for array in arrays.values())


def broken_body(side=200):
    """A PNG file whose header and end are whole, but not what is between."""
    data = encoded(tiny.picture(side, side), "PNG")
    place = data.index(b"IDAT") + 60
    return data[:place] + bytes(200) + data[place + 200 :]


def test_only_headers_are_read_until_inputs_are_asked_for(monkeypatch):
    ours = store()
    decoded = []
    monkeypatch.setattr("easyr1.data.media.open_upright", lambda data: decoded.append(1) or Image.new("RGB", (56, 56)))
    added = ours.add(encoded(tiny.picture()))
    assert (added.num_tokens, decoded) == (4, [])
    ours.inputs(added.handle)
    assert decoded == [1]


def test_a_body_that_fails_names_row_and_file(tmp_path):
    (tmp_path / "a.png").write_bytes(broken_body())
    ours = store()
    handle = ours.add("a.png", tmp_path, place="rows.jsonl, row 3: item 0").handle
    expected = r"rows\.jsonl, row 3: item 0: picture .*a\.png: not a whole picture"
    for _ in range(2):
        with pytest.raises(DataError, match=expected):
            ours.inputs(handle)
    assert "row 3" in str(ours.problem(handle))
    good = ours.add(encoded(tiny.picture())).handle
    assert ours.problem(good) is None
    (problem,) = ours.deep_check(2)
    assert "row 3" in problem and "a.png" in problem


def test_a_file_that_changes_is_told_rather_than_used(tmp_path):
    tiny.picture().save(tmp_path / "a.png")
    ours = store()
    handle = ours.add("a.png", tmp_path).handle
    tiny.picture(seed=1).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png: the file has changed"):
        ours.inputs(handle)


def test_each_picture_is_processed_once_however_many_ask_at_once(monkeypatch):
    ours = store()
    made = []
    inner = ours.reader.inputs
    monkeypatch.setattr(ours.reader, "inputs", lambda image: made.append(1) or inner(image))
    handles = [ours.add(tiny.picture(200, 200, seed=seed)).handle for seed in range(4)]
    ours.prefetch(handles)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ours.inputs, handles * 10))
    assert len(made) == 4
    assert not ours._inputs._pending


def test_prefetching_stops_at_half_of_what_is_kept_and_swallows_what_is_broken(tmp_path):
    (tmp_path / "a.png").write_bytes(broken_body())
    bad = store()
    bad.prefetch([bad.add("a.png", tmp_path).handle])
    bad._workers.shutdown()
    assert not len(bad._decoded) and not bad._decoded._pending
    one = 56 * 56 * 3
    ours = store(decoded_bytes=5 * one)
    ours.prefetch([ours.add(tiny.picture(seed=seed)).handle for seed in range(9)])
    ours._workers.shutdown()
    assert len(ours._decoded) == 2


def test_a_batch_that_is_larger_than_the_inputs_kept_is_decoded_once_and_ahead(monkeypatch):
    """Pixels in 8 bit are an eighth of the inputs, so they are kept where those are not."""
    names = []
    open_upright = media.open_upright
    monkeypatch.setattr(
        media, "open_upright", lambda data: names.append(threading.current_thread().name) or open_upright(data)
    )
    ours = store(cache_bytes=0)
    handles = [ours.add(encoded(tiny.picture(seed=seed))).handle for seed in range(9)]
    ours.prefetch(handles)
    ours._workers.shutdown()
    for _ in range(3):  # sampled, scored, trained on
        for handle in handles:
            ours.inputs(handle)
    assert len(names) == 9 and all(name.startswith("pictures") for name in names)


def old(path):
    """A file as if it had been written long ago."""
    import os

    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - 10**11))


def test_heads_of_files_are_kept_from_run_to_run_until_a_file_changes(tmp_path, monkeypatch):
    tiny.picture(64, 48).save(tmp_path / "a.png")
    old(tmp_path / "a.png")

    def added(folder=tmp_path / "cache"):
        ours = MediaStore(GridReader(tiny.image_processor("qwen2_5_vl"), 6), heads=Heads(folder))
        found = ours.add("a.png", tmp_path)
        ours.heads.flush()
        return found

    first = added()
    reads = []
    monkeypatch.setattr("easyr1.data.media.upright_size", lambda data: reads.append(1) or (640, 480))
    assert added() == first and not reads
    assert added(tmp_path / "other").size == (640, 480) and reads
    tiny.picture(48, 64).save(tmp_path / "a.png")
    old(tmp_path / "a.png")
    assert added().handle != first.handle


def test_a_file_that_was_replaced_with_its_size_and_date_kept_is_read_anew(tmp_path):
    """As copies and archives that keep dates do it."""
    import os

    found = []
    for number, colour in enumerate(("red", "blue")):
        new = tmp_path / f"{number}.bmp"
        Image.new("RGB", (56, 56), colour).save(new)
        os.utime(new, ns=(10**18, 10**18))
        os.replace(new, tmp_path / "a.bmp")
        ours = MediaStore(GridReader(tiny.image_processor("qwen2_5_vl"), 6), heads=Heads(tmp_path / "cache"))
        picture = ours.add("a.bmp", tmp_path)
        ours.heads.flush()
        assert ours.problem(picture.handle) is None
        found.append(ours.image(picture.handle).getpixel((0, 0)))
    assert found == [(255, 0, 0), (0, 0, 255)]


def test_a_file_that_is_too_fresh_to_be_trusted_is_read_again(tmp_path):
    tiny.picture().save(tmp_path / "a.png")
    heads = Heads(tmp_path / "cache")
    MediaStore(GridReader(tiny.image_processor("qwen2_5_vl"), 6), heads=heads).add("a.png", tmp_path)
    assert not heads._new


def test_a_cache_that_cannot_be_used_does_no_harm(tmp_path, caplog):
    (tmp_path / "pictures.sqlite").write_bytes(b"no database" * 100)
    heads = Heads(tmp_path)
    heads.put("a", [Head("0", 1, 1)])
    heads.flush()
    assert heads.get("a") is None
    assert "EASYR1_CACHE" in caplog.text


def test_the_cache_folder_can_be_chosen(tmp_path, monkeypatch):
    monkeypatch.setenv("EASYR1_CACHE", str(tmp_path / "here"))
    heads = Heads()
    heads.put("key", [Head("abc", 3, 4, "name"), Head("d", 1, 1)])
    heads.flush()
    assert Heads(tmp_path / "here").get("key") == [Head("abc", 3, 4, "name"), Head("d", 1, 1)]
    assert Heads(tmp_path / "here").get("other") is None


def video_store():
    processor = tiny.image_processor("qwen2_5_vl")
    return MediaStore(GridReader(processor, 6), videos=VideoReader(processor, "qwen2_5_vl", (7, 3, 4), lambda _: []))


def test_videos_are_kept_by_content_and_their_broken_frames_named(tmp_path):
    for seed in range(3):
        tiny.picture(seed=seed).save(tmp_path / f"{seed}.png")
    ours = video_store()
    files = ["0.png", "1.png", "2.png"]
    data = [(tmp_path / name).read_bytes() for name in files]
    reads = []
    good = ours.add_video(files, tmp_path, place="row 0: item 0")
    again = ours.add_video(data, None, lambda: reads.append(1) or data)
    assert (again, len(ours), good.is_video, good.num_tokens) == (good, 1, True, 2 * 4)
    assert ours.image(good.handle).tobytes() == tiny.picture(seed=0).tobytes()
    assert ours.inputs(good.handle)["video_grid_thw"].tolist() == [[2, 4, 4]]

    held = ours.add_video(data[:2], None, lambda: reads.append(1) or data[:2], "row 1: item 0")
    ours.inputs(held.handle)
    assert reads == [1]

    (tmp_path / "2.png").write_bytes(broken_body(56))
    bad = ours.add_video(files[::-1], tmp_path, place="row 2: item 0")
    with pytest.raises(DataError, match=r"row 2: item 0: video: frame 0, .*2\.png: not a whole picture"):
        ours.inputs(bad.handle)
    changed, broken = ours.deep_check(2)
    assert "row 0" in changed and "2.png: the file has changed" in changed
    assert "row 2" in broken


def test_videos_need_a_model_that_takes_them(tmp_path):
    with pytest.raises(DataError, match="this model takes no videos"):
        store().add_video([tiny.picture()])


def test_a_store_in_another_process_reads_the_pictures_itself(tmp_path, vision_chat, monkeypatch):
    """Files, pictures in a table and videos; neither pixels nor the table's bytes travel."""
    monkeypatch.setenv("EASYR1_CACHE", str(tmp_path / "cache"))
    table, file = tmp_path / "rows.parquet", tmp_path / "one.png"
    noise = tiny.picture(600, 600, seed=1)
    assert len(encoded(noise)) > 130_000
    noise.save(file)
    rows = [{"problem": "<image> a", "answer": "1", "images": [{"bytes": encoded(noise), "path": None}]}]
    rows += [
        {"problem": "<image> b", "answer": "1", "images": [{"bytes": encoded(tiny.picture(90, 60, 2)), "path": None}]}
    ]
    datasets.Dataset.from_list(rows).to_parquet(table)
    ours = vision_chat.media_store(max_pixels=tiny.MAX_PIXELS, heads=Heads(tmp_path / "heads"))
    load_prompts(str(table), vision_chat, ours, Limits(4096))
    ours.add(str(file))
    frames = [encoded(tiny.picture(60, 60, number)) for number in range(4)]
    ours.add_video([{"bytes": frame, "path": None} for frame in frames])
    ours.inputs(next(iter(ours._pictures)))  # what is kept of it stays here
    parcel = cloudpickle.dumps(ours)
    theirs = pickle.loads(parcel)
    assert len(theirs) == len(ours) == 3 and not len(theirs._inputs) and not len(theirs._decoded)
    assert len(parcel) < 100_000 + sum(map(len, frames))  # bare frames have no other place than the store
    for handle in ours._pictures:
        expected, found = ours.inputs(handle), theirs.inputs(handle)
        assert all(np.array_equal(expected[name], found[name]) for name in expected)
        assert ours.num_tokens(handle) == theirs.num_tokens(handle)
    table.unlink()
    with pytest.raises(DataError, match="no file or folder"):
        pickle.loads(parcel)
