"""Pictures of every form and mode give right pixels, the numbers of the processor, and errors that name the file."""

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from easyr1.data.media import MediaStore, open_upright
from easyr1.data.processor import GridReader, fit, patch_rule
from easyr1.errors import ConfigError, DataError
from tests import tiny

LOW, HIGH = 262144, 4194304  # the default pixel limits of a configuration


def encoded(image, form="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, format=form, **options)
    return buffer.getvalue()


def store(cache_bytes=1 << 30, **limits):
    return MediaStore(GridReader(tiny.image_processor("qwen2_5_vl"), token=6, **limits), cache_bytes)


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


RED = (200, 30, 60)


@pytest.mark.parametrize(
    ("mode", "color", "expected"),
    [
        ("RGB", RED, RED),
        ("L", 77, (77, 77, 77)),
        ("1", 1, (255, 255, 255)),
        ("LA", (0, 51), (204, 204, 204)),
        ("RGBA", (*RED, 255), RED),
        ("RGBA", (0, 0, 0, 0), (255, 255, 255)),
        ("RGBA", (0, 0, 0, 51), (204, 204, 204)),
        ("I;16", 65535, (255, 255, 255)),
        ("I;16", 257 * 77, (77, 77, 77)),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),
    ],
)
def test_every_mode_becomes_the_colours_that_a_person_sees(mode, color, expected):
    image = Image.new(mode, (30, 30), color)
    from_file = open_upright(encoded(image, "TIFF" if mode == "CMYK" else "PNG"))
    ours = store()
    from_memory = ours.image(ours.add(image).handle)
    for seen in (from_file, from_memory):
        assert (seen.mode, seen.getpixel((5, 5))) == ("RGB", expected)


def test_palettes_with_and_without_transparency():
    image = tiny.picture().convert("P")
    assert open_upright(encoded(image)).tobytes() == image.convert("RGB").tobytes()
    clear = Image.new("P", (30, 30), 0)
    clear.putpalette([10, 20, 30])
    assert open_upright(encoded(clear)).getpixel((1, 1)) == (10, 20, 30)
    assert open_upright(encoded(clear, transparency=0)).getpixel((1, 1)) == (255, 255, 255)


@pytest.mark.parametrize("as_file", [True, False])
def test_the_rotate_flag_of_a_camera_is_obeyed(as_file):
    picture = tiny.picture(84, 28)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter to the left; shown upright it is turned to the right
    data = encoded(picture, exif=exif)
    ours = store()
    added = ours.add(data if as_file else Image.open(io.BytesIO(data)))
    upright = picture.transpose(Image.Transpose.ROTATE_270)
    assert added.size == (28, 84)
    assert ours.image(added.handle).tobytes() == upright.resize(added.fitted, Image.Resampling.BICUBIC).tobytes()


def test_a_truncated_file_is_found_when_it_is_added(tmp_path):
    for form in ("JPEG", "PNG"):
        path = tmp_path / f"half.{form.lower()}"
        data = encoded(tiny.picture(200, 200), form)
        path.write_bytes(data[: len(data) // 2])
        with pytest.raises(DataError, match=rf"{path}.*not a whole picture"):
            store().add(path)


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


def test_a_relative_path_without_a_folder_asks_for_image_dir():
    with pytest.raises(DataError, match=r"a\.png.*data\.image_dir"):
        store().add("a.png")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("limit", [1000, 400])  # Pillow warns above its limit and raises above twice the limit
def test_too_many_pixels_are_refused_before_they_are_decoded(monkeypatch, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(DataError, match=f"40x40 pixels is more than {limit}|1600 pixels"):
        store().add(encoded(Image.new("L", (40, 40))))


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
    with pytest.raises(FileNotFoundError, match=r"a\.png"):
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
    assert ours._cached_bytes == sum(array.nbytes for arrays in ours._cache.values() for array in arrays.values())
