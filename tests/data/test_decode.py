"""Odd pictures give the pixels that a person sees, or one error; their size is known from the header alone."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile

from easyr1.data import decode
from easyr1.data.decode import open_upright, read_picture, upright_size
from easyr1.errors import DataError
from tests import tiny

RED = (200, 30, 60)
ORIENTATION = 0x0112


def encoded(image, form="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, format=form, **options)
    return buffer.getvalue()


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def turned(orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


@pytest.fixture
def no_pixels(monkeypatch):
    """Decoding fails."""

    def refuse(*_):
        raise AssertionError("the pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", refuse)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("size", [(1, 1), (64, 48), (3, 230)])
def test_the_size_is_read_without_pixels(no_pixels, form, size):
    assert upright_size(encoded(Image.new("RGB", size), form)) == size


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_the_header_turns_the_size_without_pixels(no_pixels, form, orientation):
    expected = (20, 60) if orientation >= 5 else (60, 20)
    assert upright_size(encoded(Image.new("RGB", (60, 20)), form, exif=turned(orientation))) == expected


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_is_that_of_the_decoded_picture(form, orientation):
    data = encoded(tiny.picture(60, 20), form, exif=turned(orientation))
    assert upright_size(data) == open_upright(data).size


def test_the_rotate_flag_of_a_camera_is_obeyed():
    picture = tiny.picture(84, 28)
    upright = picture.transpose(Image.Transpose.ROTATE_270)
    assert open_upright(encoded(picture, exif=turned(6))).tobytes() == upright.tobytes()


def test_an_orientation_behind_the_pixels_of_a_png_is_obeyed():
    data = encoded(Image.new("RGB", (60, 20)))
    late = data[:-12] + chunk(b"eXIf", turned(6).tobytes()[6:]) + data[-12:]
    assert upright_size(late) == open_upright(late).size == (20, 60)


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
    data = encoded(image, "TIFF" if mode == "CMYK" else "PNG")
    for seen in (open_upright(data), open_upright(decode.encode(image))):
        assert (seen.mode, seen.getpixel((5, 5))) == ("RGB", expected)
    assert upright_size(data) == (30, 30)


def test_palettes_with_and_without_transparency():
    image = tiny.picture().convert("P")
    assert open_upright(encoded(image)).tobytes() == image.convert("RGB").tobytes()
    clear = Image.new("P", (30, 30), 0)
    clear.putpalette([10, 20, 30])
    assert open_upright(encoded(clear)).getpixel((1, 1)) == (10, 20, 30)
    assert open_upright(encoded(clear, transparency=0)).getpixel((1, 1)) == (255, 255, 255)


def test_of_an_animation_the_first_frame_is_seen():
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert open_upright(data).getpixel((1, 1)) == (255, 0, 0)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_cut_off_file_is_told_with_its_size_already(form):
    data = encoded(tiny.picture(200, 200), form)
    half = data[: len(data) // 2]
    for look in (upright_size, open_upright):
        with pytest.raises(DataError, match=f"not a whole picture.*{len(half)} bytes"):
            look(half)


@pytest.mark.parametrize("look", [upright_size, open_upright])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("limit", [1000, 400])  # Pillow warns above its limit and raises above twice the limit
def test_too_many_pixels_are_refused_before_they_are_decoded(no_pixels, monkeypatch, look, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(DataError, match=f"40x40 pixels is more than {limit}|1600 pixels"):
        look(encoded(Image.new("L", (40, 40))))


@pytest.mark.parametrize("look", [upright_size, open_upright])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "format that Pillow reads"),
        (b"<html>not found</html>", "format that Pillow reads.*<html>"),
        (encoded(Image.new("F", (4, 4)), "TIFF"), "floating-point"),
    ],
)
def test_what_is_no_picture_is_told(look, data, expected):
    with pytest.raises(DataError, match=expected):
        look(data)


def test_every_form_of_a_picture_gives_the_same_bytes(tmp_path):
    picture = tiny.picture(40, 30)
    data = encoded(picture)
    (tmp_path / "a.png").write_bytes(data)
    for form in (data, bytearray(data), {"bytes": data, "path": "other.png"}, picture):
        assert read_picture(form, tmp_path) == (data, None)
    for form in ("a.png", tmp_path / "a.png", {"bytes": None, "path": "a.png"}):
        assert read_picture(form, tmp_path) == (data, tmp_path / "a.png")
    assert np.array_equal(np.asarray(open_upright(data)), np.asarray(picture))


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("nosuch.png", "nosuch.png: No such file.*image_dir"),
        ("/nosuch.png", r"/nosuch.png: No such file or directory\.$"),
        ("https://host/a.png", "https://host/a.png.*download"),
        ({"bytes": None, "path": None}, "a picture must be a path"),
        (7, "a picture must be a path"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path, image, expected):
    with pytest.raises(DataError, match=expected):
        read_picture(image, tmp_path)


def test_a_relative_path_without_a_folder_asks_for_image_dir():
    with pytest.raises(DataError, match=r"a\.png.*data\.image_dir"):
        read_picture("a.png", None)
