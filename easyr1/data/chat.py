"""Question and pictures -> token ids, and answers back to text. The only door to the tokenizer.

Knows chat templates, the format prompt and the placeholders of pictures. Does not know rows, files of pictures or
pixels: a picture is some ids here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import jinja2.sandbox
import numpy as np

from easyr1.config.paths import find_file
from easyr1.data.heads import Heads
from easyr1.data.media import MediaStore, Picture
from easyr1.data.model_files import ModelFiles
from easyr1.data.processor import (
    TOKENIZER_KEY,
    FamilyReader,
    GridReader,
    image_token_id,
    is_grid_kind,
    picture_keys,
    picture_token_ids,
)
from easyr1.data.video import FAMILIES, VideoReader
from easyr1.errors import ConfigError, DataError

IMAGE_PLACEHOLDER = "<image>"
VIDEO_PLACEHOLDER = "<video>"  # plain text for a model that takes no videos
KINDS = {IMAGE_PLACEHOLDER: "image", VIDEO_PLACEHOLDER: "video"}
ROLES = ("system", "user", "assistant")
VISION_TOKEN_KEYS = (  # without these in the tokenizer a model cannot see
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
)
FORMAT_KEY = "data.format_prompt"
PROBE = "Which digit is shown?"
TEMPLATE_KEY = "data.override_chat_template"

Content = str | Sequence[Mapping[str, str]]  # a question, or the turns of a conversation that ends with one


class FormatPrompt:
    """A Jinja file that wraps each question, which it sees as `content`; rendered in a sandbox."""

    def __init__(self, path: Path) -> None:
        environment = jinja2.sandbox.SandboxedEnvironment(undefined=jinja2.StrictUndefined)
        source = _read(path, FORMAT_KEY).strip()
        try:
            names = jinja2.meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(FORMAT_KEY, f"{path} is no Jinja template: {error}") from error
        if "content" not in names:
            raise ConfigError(FORMAT_KEY, f"{path} never uses {{{{ content }}}}, so all prompts would be equal.")
        if names != {"content"}:
            unknown = ", ".join(sorted(names - {"content"}))
            raise ConfigError(FORMAT_KEY, f"{path} uses {unknown}, but only `content`, the question, is given.")
        self._path = path

    def __call__(self, content: str) -> str:
        try:
            return self._template.render(content=content)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise ConfigError(FORMAT_KEY, f"{self._path} cannot be rendered: {error}") from error


class Chat:
    """The tokenizer, chat template and image processor of one model. Safe for threads."""

    def __init__(
        self,
        files: ModelFiles,
        *,
        override_chat_template: str | None = None,
        format_prompt: str | None = None,
    ) -> None:
        """Load what is in `files`. The two templates are paths of Jinja files.

        Raises ConfigError for files and templates that are missing, broken or of no use.
        """
        config = files.load_config()
        self.files = files
        self.tokenizer = files.load_tokenizer()
        self.image_token_id = image_token_id(config)  # the token that each feature of a picture takes the place of
        self.image_processor = files.load_image_processor() if self.image_token_id is not None else None
        self._family = self._family_processor(config)
        self.placeholder_id = self._placeholder_id()
        self.model_type: str = config.model_type
        self._video_tokens = _video_tokens(config)
        self.format_prompt = FormatPrompt(find_file(format_prompt, FORMAT_KEY)) if format_prompt else None
        self._vision_words = self._words_of(config)
        self._template_override: str | None = None
        if override_chat_template:
            self._template_override = _read(find_file(override_chat_template, TEMPLATE_KEY), TEMPLATE_KEY)
            self.tokenizer.chat_template = self._template_override
        if self.tokenizer.chat_template is None:
            raise ConfigError(TEMPLATE_KEY, f"{files.tokenizer} has no chat template; give a Jinja file with one.")
        self._takes_plain_text = self._shows(PROBE)
        # The first call may switch off truncation that the files ask for, which threads must not do at once.
        self.tokenizer.encode("")

    @classmethod
    def load(
        cls, model_path: str, *, tokenizer_path: str | None = None, trust_remote_code: bool = False, **templates: Any
    ) -> "Chat":
        """The chat of a model folder or hub model; tokenizer and processor may come from another one.

        `templates`: override_chat_template and format_prompt, see __init__.
        """
        return cls(ModelFiles.find(model_path, tokenizer_path, trust_remote_code), **templates)

    @property
    def sees(self) -> bool:
        """Whether the model takes pictures."""
        return self.image_processor is not None

    def media_store(
        self,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        heads: Heads | None = None,
        **video: Any,
    ) -> MediaStore | None:
        """A store that prepares pictures and videos for this model; None for a text model.

        `video`: fps and max_frames, see VideoReader; the pixel limits hold for its frames, too.
        """
        if self.placeholder_id is None:
            return None
        if self._family is not None:
            return MediaStore(FamilyReader(self._family, min_pixels, max_pixels), heads=heads)
        reader = GridReader(self.image_processor, self.placeholder_id, min_pixels, max_pixels)
        if self._video_tokens is None:
            return MediaStore(reader, heads=heads)
        limits = {"min_pixels": min_pixels, "max_pixels": max_pixels}
        words = partial(self.tokenizer.encode, add_special_tokens=False)
        videos = VideoReader(self.image_processor, self.model_type, self._video_tokens, words, **limits, **video)
        return MediaStore(reader, videos=videos, heads=heads)

    def copy_files(self, folder: Path) -> list[Path]:
        """Copy the model's tokenizer, processor, template and generation files; the override replaces the template."""
        return self.files.copy(folder, self._template_override)

    def messages(self, content: Content) -> list[dict[str, Any]]:
        """The conversation that the chat template takes: the last question formatted, placeholders made items."""
        turns = _turns(content)
        if self.format_prompt is not None:
            turns[-1]["content"] = self.format_prompt(turns[-1]["content"])
        for turn in turns:
            self._refuse_vision_words(turn["content"])
        takes_videos = self._video_tokens is not None
        placeholders = KINDS if takes_videos else {IMAGE_PLACEHOLDER: "image"}
        items = [_items(turn["content"], placeholders) for turn in turns]
        if not self._takes_plain_text:
            items = [_text_item(item) if isinstance(item, str) else item for item in items]
        return [turn | {"content": item} for turn, item in zip(turns, items, strict=True)]

    def render(self, content: Content) -> str:
        """The prompt as text, each picture as one placeholder of the model, up to where the answer begins."""
        return self._render(self.messages(content))

    def encode(
        self, content: Content, pictures: Sequence[Picture] = (), videos: Sequence[Picture] = ()
    ) -> tuple[np.ndarray, str]:
        """Token ids (P,) int64 with every picture at its full number of tokens, and the rendered text.

        Raises DataError where pictures and placeholders do not match.
        """
        ids, text, _ = self.prepare(content, pictures, videos)
        return ids, text

    def prepare(
        self, content: Content, pictures: Sequence[Picture] = (), videos: Sequence[Picture] = ()
    ) -> tuple[np.ndarray, str, list[Picture]]:
        """As `encode`, and the pictures and videos in the order of their placeholders."""
        messages = self.messages(content)
        media = _in_order([kind for turn in messages for kind in _kinds(turn["content"])], pictures, videos)
        text = self._framed(self._render(messages), media)
        bos = (
            self.tokenizer.bos_token
        )  # processors have it added where a template does not write it; tokenizers do not
        bare = not self.sees or bool(bos and text.startswith(bos))
        ids = np.asarray(self.tokenizer.encode(text, add_special_tokens=not bare), dtype=np.int64)
        return self._expand(ids, media), text, media

    def decode(self, ids: Sequence[int] | np.ndarray, skip_special_tokens: bool = True) -> str:
        tokens = np.asarray(ids, dtype=np.int64).tolist()
        return self.tokenizer.decode(
            tokens, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )

    def _family_processor(self, config: Any) -> Any:
        """The processor of the model's family, for pictures; None where there are none or plain patches do."""
        if self.image_processor is None or is_grid_kind(self.image_processor):
            return None
        return self.files.load_family_processor(config, self.image_processor, self.tokenizer)

    def _placeholder_id(self) -> int | None:
        """The token that stands for one picture in a rendered prompt."""
        if self._family is not None:
            return int(self.tokenizer.convert_tokens_to_ids(self._family.image_token))
        return self.image_token_id

    def _words_of(self, config: Any) -> list[str]:
        """The tokens, as text, by which this model marks pictures and videos."""
        known = self.tokenizer.added_tokens_decoder
        named = picture_keys(config)
        for key, token_id in named.items():
            if token_id not in known and key in VISION_TOKEN_KEYS:
                raise ConfigError(
                    TOKENIZER_KEY, f"{self.files.tokenizer} has no special token {token_id}, the model's {key}."
                )
        ids = set(named.values()) | (picture_token_ids(self._family) if self._family else set())
        words = self.tokenizer.convert_ids_to_tokens(sorted(ids & known.keys()))
        return [word for word in words if word != IMAGE_PLACEHOLDER]

    def _refuse_vision_words(self, text: str) -> None:
        for word in self._vision_words:
            if word in text:
                raise DataError(
                    f"the text contains {word!r}, which the model would take for part of a picture; mark pictures by "
                    f"{IMAGE_PLACEHOLDER} and take {word!r} out of the text."
                )

    def _shows(self, text: str) -> bool:
        """Whether the template shows content that is no list of items; some leave it out without a word."""
        try:
            return text in self.tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False)
        except (jinja2.TemplateError, TypeError, ValueError):
            return False

    def _render(self, messages: list[dict[str, Any]]) -> str:
        try:
            text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise DataError(f"the chat template cannot render this prompt: {error}") from error
        question = messages[-1]["content"]
        for item in _text_item(question) if isinstance(question, str) else question:
            if item["type"] == "text" and item["text"].strip() not in text:
                raise DataError(f"the chat template leaves {item['text'].strip()!r:.80} out ({TEMPLATE_KEY}).")
        return text

    def _framed(self, text: str, pictures: Sequence[Picture]) -> str:
        """The text with what the model's family writes around each picture's placeholder."""
        if not any(picture.measured.before or picture.measured.after for picture in pictures):
            return text
        word = self.tokenizer.convert_ids_to_tokens(self.placeholder_id)
        first, *rest = text.split(word)
        if len(rest) != len(pictures):
            raise self._wrong_template(len(rest), len(pictures))
        framed = zip((picture.measured for picture in pictures), rest, strict=True)
        return first + "".join(f"{one.before}{word}{one.after}{piece}" for one, piece in framed)

    def _expand(self, ids: np.ndarray, pictures: Sequence[Picture]) -> np.ndarray:
        """Put the ids of each picture in the place of its placeholder."""
        if self.placeholder_id is None:
            return ids
        video = None if self._video_tokens is None else self._video_tokens[0]
        tokens = [video if picture.is_video else self.placeholder_id for picture in pictures]
        (places,) = np.nonzero(
            (ids == self.placeholder_id) | (ids == (self.placeholder_id if video is None else video))
        )
        if ids[places].tolist() != tokens:
            raise self._wrong_template(len(places), len(pictures))
        first, *rest = np.split(ids, places)
        parts = [first]
        for picture, piece in zip(pictures, rest, strict=True):
            parts += [picture.measured.ids, piece[1:]]
        return np.concatenate(parts)

    def _wrong_template(self, found: int, expected: int) -> DataError:
        return DataError(
            f"the chat template made {found} picture placeholders for {expected} pictures; a template for this model "
            f"writes one per item of type 'image' ({TEMPLATE_KEY})."
        )


def _read(path: Path, key: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(key, f"{path} is not a text file that can be read: {error}") from error


def _turns(content: Content) -> list[dict[str, str]]:
    """A question, or a conversation that ends with one, as turns of {"role", "content"}."""
    if isinstance(content, str):
        content = [{"role": "user", "content": content}]
    if not isinstance(content, Iterable) or not all(isinstance(turn, Mapping) for turn in content):
        raise DataError(f"a prompt is a text or a list of {{'role', 'content'}}, but it is {content!r:.80}.")
    turns: list[dict[str, str]] = []
    for turn in content:
        role, text = turn.get("role"), turn.get("content")
        if role not in ROLES or not isinstance(text, str):
            raise DataError(f"a turn has a role of {', '.join(ROLES)} and a text as content, but it is {turn!r:.80}.")
        turns.append({"role": role, "content": text})
    if not turns or turns[-1]["role"] != "user":
        raise DataError("a prompt must end with a turn of role 'user', which is the question.")
    if not turns[-1]["content"].strip():
        raise DataError("the question is empty.")
    return turns


def _items(text: str, placeholders: Mapping[str, str]) -> str | list[dict[str, str]]:
    """The text, or where it has placeholders a list of pictures, videos and the texts between them."""
    pieces = re.split("|".join(f"({re.escape(word)})" for word in placeholders), text)
    if len(pieces) == 1:
        return text
    return [
        {"type": placeholders[piece]} if piece in placeholders else {"type": "text", "text": piece}
        for piece in pieces
        if piece
    ]


def _text_item(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _kinds(items: str | list[dict[str, str]]) -> list[str]:
    """Of each picture and video, in order."""
    return [] if isinstance(items, str) else [item["type"] for item in items if item["type"] != "text"]


def _in_order(kinds: Sequence[str], pictures: Sequence[Picture], videos: Sequence[Picture]) -> list[Picture]:
    """The pictures and videos of a row as their placeholders follow each other."""
    given = {"image": pictures, "video": videos}
    for word, kind in KINDS.items():
        if kinds.count(kind) != len(given[kind]):
            name = "pictures" if kind == "image" else "videos"
            raise DataError(
                f"{word} placeholders: {kinds.count(kind)}, {name}: {len(given[kind])}. Write one {word} where each "
                "one belongs."
            )
    waiting = {kind: iter(media) for kind, media in given.items()}
    return [next(waiting[kind]) for kind in kinds]


def _video_tokens(config: Any) -> tuple[int, int, int] | None:
    """Ids of a video, of its start and of its end; None where the model's family has no videos here."""
    if config.model_type not in FAMILIES:
        return None
    return config.video_token_id, config.vision_start_token_id, config.vision_end_token_id
