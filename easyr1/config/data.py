"""Keys of `data`: which rows, how they become prompts, how many are drawn at a time."""

from dataclasses import dataclass
from typing import Literal

from easyr1.config.ranges import Count, CountOrOff, Positive


@dataclass(frozen=True)
class DataConfig:
    """Rows, prompts and batches of prompts."""

    train_files: str | tuple[str, ...] = "hiyouga/math12k@train"
    """Training rows: a Hugging Face data set, a file (parquet, json, jsonl, csv, arrow) or a folder of files, each
    with `@split` at the end if the split is not `train`. Several may be given as a list."""

    train_weights: tuple[Positive, ...] | None = None
    """How often an epoch draws the rows of each source of train_files: 2 = every row twice, 0.5 = every other row, the
    rest in the next epoch. One number for each source; null = every row once."""

    val_files: str | tuple[str, ...] = "hiyouga/math12k@test"
    """Validation rows, written like train_files. With several sources, each has metrics of its own besides."""

    prompt_key: str = "problem"
    """Column with the question. `<image>` in its text marks the place of each picture."""

    answer_key: str = "answer"
    """Column with the reference answer; the reward function gets it as `ground_truth`."""

    image_key: str = "images"
    """Column with the list of pictures of a row."""

    video_key: str = "videos"
    """Column with the list of videos of a row: files, folders of frames, lists of frames. `<video>` in the question
    marks the place of each."""

    image_dir: str | None = None
    """Folder that relative picture and video paths start from; null = the folder of the data file."""

    video_fps: Positive = 2.0
    """Frames sampled from each second of a video."""

    max_video_frames: Count = 768
    """Most frames of a video; a longer one is sampled more thinly. Our own key."""

    on_bad_media: Literal["stop", "skip"] = "stop"
    """What to do about a picture or video whose file proves broken in training: stop the run, or skip its row and draw
    the next one in its place. Our own key."""

    max_prompt_length: Count = 2048
    """Longest prompt in tokens, those of its pictures included."""

    max_response_length: Count = 2048
    """Longest answer in tokens; a longer one is cut there."""

    rollout_batch_size: Count = 512
    """Prompts per training step. Each is answered worker.rollout.n times."""

    mini_rollout_batch_size: Count | None = None
    """Prompts drawn at a time while algorithm.online_filtering looks for rollout_batch_size useful ones;
    null = rollout_batch_size."""

    val_batch_size: CountOrOff = 1024
    """Validation prompts answered at a time; -1 = all at once. Does not change the result."""

    format_prompt: str | None = "./examples/format_prompt/math.jinja"
    """Jinja file that wraps each question, which it sees as `content`; null = the question as it is."""

    override_chat_template: str | None = None
    """Jinja file used in place of the model's own chat template."""

    shuffle: bool = True
    """Draw training rows in a new random order each epoch; false = in file order."""

    seed: int = 1
    """Seed of the order of rows. The order depends on it and on the epoch alone."""

    min_pixels: Count | None = 262144
    """Smaller pictures and frames are enlarged to this many pixels; null = the processor's own limit."""

    max_pixels: Count | None = 4194304
    """Larger pictures and frames are reduced to this many pixels, and with them the tokens that they cost; null = the
    processor's own limit."""

    filter_overlong_prompts: bool = True
    """Leave out rows whose prompt is longer than max_prompt_length; false = stop at the first such row."""

    filter_overlong_prompts_workers: Count = 16
    """Most processes that measure prompts; never more than the machine has cores."""
