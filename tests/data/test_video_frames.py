"""Videos: the frames, sizes and tokens of each family's own rule, right times, and one error for what is wrong."""

import numpy as np
import pytest
import torch
from PIL import Image

from easyr1.data.processor import PatchRule
from easyr1.data.video import Footage, VideoReader, fit_frames, open_video, sample, timestamps
from easyr1.errors import ConfigError, DataError
from tests import tiny

TOKENS = tuple(tiny.token_id(f"<|{name}|>") for name in ("video_pad", "vision_start", "vision_end"))
VIDEO, START, END = TOKENS


def encode(text):
    return tiny.tokenizer().encode(text, add_special_tokens=False)


def reader(kind, **options):
    return VideoReader(tiny.image_processor(kind), kind, TOKENS, encode, **options)


def frames(count, width=56, height=56):
    return [tiny.picture(width, height, seed=number) for number in range(count)]


def of_transformers_qwen2(total, video_fps, fps, max_frames=768, min_frames=4, temporal=2):
    """sample_frames of transformers' Qwen2VLVideoProcessor, which itself needs torchvision."""
    most = min(max_frames, total) // temporal * temporal
    count = min(max(total / video_fps * fps, min_frames), most, total)
    count = int(count // temporal * temporal)
    return tuple(torch.arange(0, total, total / count).int().tolist())


def of_transformers_qwen3(total, video_fps, fps, max_frames=768, min_frames=4):
    """sample_frames of transformers' Qwen3VLVideoProcessor."""
    count = min(max(int(total / video_fps * fps), min_frames), max_frames, total)
    return tuple(np.linspace(0, total - 1, count).round().astype(int).tolist())


@pytest.mark.parametrize("total", [2, 5, 24, 100, 731])
@pytest.mark.parametrize("video_fps", [10.0, 24.0, 29.97])
@pytest.mark.parametrize("fps", [0.5, 2.0, 7.0])
@pytest.mark.parametrize("most", [6, 768])
def test_frames_are_sampled_as_the_family_does(total, video_fps, fps, most):
    footage = Footage(total, (8, 8), video_fps, "")
    assert sample(footage, fps, most, 2, spread=False) == of_transformers_qwen2(total, video_fps, fps, most)
    assert sample(footage, fps, most, 2, spread=True) == of_transformers_qwen3(total, video_fps, fps, most)


@pytest.mark.parametrize("spread", [False, True])
def test_frames_that_are_sampled_already_are_all_taken_unless_too_many(spread):
    footage = Footage(5, (8, 8), None, "")
    assert sample(footage, 2.0, 768, 2, spread) == (0, 1, 2, 3, 4)
    assert len(sample(footage, 2.0, 3, 2, spread)) == 3
    assert sample(Footage(1, (8, 8), 30.0, ""), 2.0, 768, 2, spread) == (0,)


def test_timestamps_are_the_middle_of_each_pair():
    assert timestamps([0, 5, 10, 15], 10.0, 2) == [0.25, 1.25]
    assert timestamps([0, 6, 13], 10.0, 2) == [0.3, 1.3]  # the last frame is there twice


def test_qwen2_fits_each_frame_and_qwen3_all_frames_together():
    rule = PatchRule(16, 2, 32 * 32 * 4, 32 * 32 * 8)
    assert fit_frames(8, 640, 480, rule, "qwen2_5_vl", 2) == fit_frames(2, 640, 480, rule, "qwen2_5_vl", 2)
    width, height = fit_frames(8, 640, 480, rule, "qwen3_vl", 2)
    assert width % 32 == height % 32 == 0
    assert width * height <= rule.max_pixels
    assert fit_frames(1, 64, 64, rule, "qwen3_vl", 2) == (64, 64)
    for kind in ("qwen2_vl", "qwen3_vl"):
        with pytest.raises(DataError, match=r"aspect ratio.*200"):
            fit_frames(4, 9000, 32, rule, kind, 2)


@pytest.mark.parametrize("kind", tiny.VISION_KINDS)
def test_a_still_video_has_the_pixels_of_the_picture(kind):
    ours = reader(kind)
    picture = tiny.picture(100, 70)
    video = open_video([picture] * 4, None)
    made = ours.inputs(video, ours.measure(video.footage))
    expected = tiny.image_processor(kind)(images=[picture], return_tensors="np")
    assert made["video_grid_thw"].tolist() == [[2, *expected["image_grid_thw"][0, 1:]]]
    for half in np.split(made["pixel_values_videos"], 2):
        assert np.array_equal(half, expected["pixel_values"])


def test_patches_hold_two_frames_in_the_order_of_transformers():
    """patchify of transformers' Qwen2VLVideoProcessor, written in numpy; five frames, the last one twice."""
    ours = reader("qwen2_vl")
    pictures = frames(5, 84, 56)
    video = open_video(pictures, None)
    made = ours.inputs(video, ours.measure(video.footage))
    processor = tiny.image_processor("qwen2_vl")
    stacked = np.stack([np.asarray(picture) for picture in [*pictures, pictures[-1]]]).transpose(0, 3, 1, 2)
    mean, std = (np.array(value, np.float32)[:, None, None] for value in (processor.image_mean, processor.image_std))
    normal = (stacked.astype(np.float32) / 255 - mean) / std
    parts = normal.reshape(3, 2, 3, 2, 2, 14, 3, 2, 14).transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    np.testing.assert_allclose(made["pixel_values_videos"], parts.reshape(3 * 4 * 6, -1), atol=1e-5)
    assert made["video_grid_thw"].tolist() == [[3, 4, 6]]


def test_only_qwen2_5_gives_seconds():
    for kind in tiny.VISION_KINDS:
        ours = reader(kind, fps=4.0)
        video = open_video({"frames": frames(16), "fps": 8.0}, None)
        clip = ours.measure(video.footage)
        made = ours.inputs(video, clip)
        assert len(clip.indices) == 8
        assert clip.seconds_per_grid == 0.5
        assert ("second_per_grid_ts" in made) == (kind == "qwen2_5_vl")
        assert len(clip.ids[clip.ids == VIDEO]) == made["video_grid_thw"].prod() // 4
    assert made["pixel_values_videos"].dtype == np.float32


def test_frames_without_a_rate_are_at_the_rate_of_the_setting():
    clip = reader("qwen2_5_vl", fps=4.0).measure(open_video(frames(4), None).footage)
    assert clip.seconds_per_grid == 0.5


def test_qwen3_has_the_time_in_words_before_each_moment():
    ours = reader("qwen3_vl")
    clip = ours.measure(Footage(40, (64, 64), 10.0, ""))
    assert clip.indices == (0, 6, 11, 17, 22, 28, 33, 39)
    expected = []
    for time in ("0.3", "1.4", "2.5", "3.6"):
        expected += [*encode(f"<{time} seconds>"), START, *[VIDEO] * (clip.grid[1] * clip.grid[2] // 4), END]
    assert clip.ids.tolist() == expected


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_the_others_have_video_tokens_alone(kind):
    clip = reader(kind).measure(Footage(40, (56, 56), 10.0, ""))
    assert clip.ids.tolist() == [VIDEO] * (4 * 4)


def test_a_list_and_a_folder_of_the_same_frames_are_one_video(tmp_path):
    pictures = frames(3)
    (tmp_path / "clip").mkdir()
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / "clip" / f"{number}.png")
    forms = [
        "clip",
        {"path": "clip"},
        {"frames": "clip"},
        ["clip/0.png", {"path": "clip/1.png"}, (tmp_path / "clip/2.png").read_bytes()],
        pictures,
    ]
    footages = [open_video(form, tmp_path).footage for form in forms]
    assert len(set(footages)) == 1
    read = open_video("clip", tmp_path).read([0, 2])
    assert [image.tobytes() for image in read] == [pictures[0].tobytes(), pictures[2].tobytes()]
    assert open_video({"frames": "clip", "fps": 2}, tmp_path).footage != footages[0]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (None, "a video must be a path"),
        (b"....", "not bytes"),
        ("https://host/a.mp4", "not fetched from the network"),
        ([], "no frames"),
        ("empty", r"empty: no frames"),
        (["nosuch.png"], r"nosuch\.png: No such file"),
        ([tiny.picture(), tiny.picture(60, 56)], r"frame 1 is \(60, 56\) pixels large"),
        ([b"<html>"], r"frame 0: .*<html>"),
        ({"frames": [tiny.picture()], "fps": 0}, "fps of a video must be a number above 0"),
    ],
)
def test_what_cannot_be_used_is_told(tmp_path, item, expected):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=expected):
        open_video(item, tmp_path)


def test_other_families_are_refused():
    with pytest.raises(ConfigError, match=r"data\.video_key.*not with glm4v"):
        VideoReader(tiny.image_processor("qwen2_vl"), "glm4v", TOKENS, encode)


def test_a_video_file_without_pyav_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    (tmp_path / "a.mp4").write_bytes(b"x")
    with pytest.raises(DataError, match=r"a\.mp4: video files need PyAV; pip install 'easyr1\[video\]'"):
        open_video("a.mp4", tmp_path)


def write_clip(path, turn=0):
    """24 frames at 8 a second, each of one grey, brighter from frame to frame, with a white top."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        if turn:
            if not hasattr(stream, "set_display_rotation"):
                pytest.skip("this PyAV cannot write turned videos")
            stream.set_display_rotation(turn)
        for number in range(24):
            image = Image.new("RGB", (64, 48), (10 * number,) * 3)
            image.paste("white", (0, 0, 64, 8))
            for packet in stream.encode(av.VideoFrame.from_image(image)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


@pytest.fixture
def clip_file(tmp_path):
    return write_clip(tmp_path / "clip.mp4")


def test_a_video_file_is_counted_and_read(clip_file):
    video = open_video(clip_file.name, clip_file.parent)
    assert (video.footage.frames, video.footage.size, video.footage.fps) == (24, (64, 48), 8.0)
    indices = sample(video.footage, 2.0, 768, 2, spread=False)
    assert indices == (0, 4, 8, 12, 16, 20)
    greys = [np.asarray(image)[16:].mean() for image in video.read(indices)]
    assert np.allclose(greys, [10 * index for index in indices], atol=6)


@pytest.mark.parametrize(("turn", "side"), [(90, np.s_[:, :4]), (-90, np.s_[:, -4:])])
def test_a_turned_video_is_upright(tmp_path, turn, side):
    """Turned to the left, what was the top is at the left."""
    video = open_video(write_clip(tmp_path / "turned.mp4", turn), None)
    (image,) = video.read([0])
    assert video.footage.size == image.size == (48, 64)
    assert np.asarray(image)[side].mean() > 230
    assert np.asarray(image).mean() < 80


def test_a_broken_or_changed_video_file_is_told(clip_file):
    video = open_video(clip_file, None)
    data = clip_file.read_bytes()
    clip_file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DataError, match="has changed"):
        video.read([0])
    clip_file.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"clip\.mp4: "):
        open_video(clip_file, None)
    clip_file.write_bytes(b"no video at all")
    with pytest.raises(DataError, match=r"clip\.mp4: cannot be opened"):
        open_video(clip_file, None)
    with pytest.raises(DataError, match="no such file"):
        open_video(clip_file.parent / "nosuch.mp4", None)


def test_frames_without_a_rate_that_are_thinned_are_as_far_apart_as_they_are():
    """At 2 frames a second, every fourth frame: a moment of two frames lasts four seconds, whoever says the rate."""
    ours = reader("qwen2_5_vl", fps=2.0, max_frames=8)
    clips = [ours.measure(Footage(32, (56, 56), rate, "")) for rate in (None, 2.0)]
    assert [len(clip.indices) for clip in clips] == [8, 8]
    assert clips[0].seconds_per_grid == clips[1].seconds_per_grid == 4.0
