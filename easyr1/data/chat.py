"""Question and pictures -> token ids, and answers back to text. The only door to the tokenizer.

Knows chat templates, the format prompt and the placeholders of pictures. Does not know rows, files of pictures or
pixels: a picture is some ids here.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import jinja2.sandbox
import numpy as np

from easyr1.config.paths import find_file
from easyr1.data.media import MediaStore, Picture
from easyr1.data.model_files import ModelFiles
from easyr1.data.processor import (
    TOKENIZER_KEY,
    FamilyReader,
    GridReader,
    image_token_id,
    is_grid_kind,
    picture_token_ids,
)
from easyr1.errors import ConfigError, DataError

IMAGE_PLACEHOLDER = "<image>"
ROLES = ("system", "user", "assistant")
VISION_TOKEN_KEYS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
FORMAT_KEY = "data.format_prompt"
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
        self.format_prompt = FormatPrompt(find_file(format_prompt, FORMAT_KEY)) if format_prompt else None
        self._vision_words = self._words_of(config)
        self._template_override: str | None = None
        if override_chat_template:
            self._template_override = _read(find_file(override_chat_template, TEMPLATE_KEY), TEMPLATE_KEY)
            self.tokenizer.chat_template = self._template_override
        if self.tokenizer.chat_template is None:
            raise ConfigError(TEMPLATE_KEY, f"{files.tokenizer} has no chat template; give a Jinja file with one.")
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

    def media_store(self, min_pixels: int | None = None, max_pixels: int | None = None) -> MediaStore | None:
        """A store that prepares pictures for this model; None for a text model."""
        if self.placeholder_id is None:
            return None
        if self._family is None:
            return MediaStore(GridReader(self.image_processor, self.placeholder_id, min_pixels, max_pixels))
        return MediaStore(FamilyReader(self._family, min_pixels, max_pixels))

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
        return [turn | {"content": _items(turn["content"])} for turn in turns]

    def render(self, content: Content) -> str:
        """The prompt as text, each picture as one placeholder of the model, up to where the answer begins."""
        return self._render(self.messages(content))

    def encode(self, content: Content, pictures: Sequence[Picture] = ()) -> tuple[np.ndarray, str]:
        """Token ids (P,) int64 with every picture at its full number of tokens, and the rendered text.

        Raises DataError where pictures and placeholders do not match.
        """
        messages = self.messages(content)
        placeholders = sum(_num_pictures(turn["content"]) for turn in messages)
        if placeholders != len(pictures):
            raise DataError(
                f"{IMAGE_PLACEHOLDER} placeholders: {placeholders}, pictures: {len(pictures)}. Write one "
                f"{IMAGE_PLACEHOLDER} where each picture belongs."
            )
        text = self._framed(self._render(messages), pictures)
        ids = np.asarray(self.tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)
        return self._expand(ids, pictures), text

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
        named = {key: getattr(config, key, None) for key in VISION_TOKEN_KEYS}
        named |= {f"token {token}": token for token in picture_token_ids(self._family)} if self._family else {}
        for key, token_id in named.items():
            if token_id is not None and token_id not in self.tokenizer.added_tokens_decoder:
                raise ConfigError(
                    TOKENIZER_KEY, f"{self.files.tokenizer} has no special token {token_id}, the model's {key}."
                )
        ids = sorted({token_id for token_id in named.values() if token_id is not None})
        return self.tokenizer.convert_ids_to_tokens(ids)

    def _refuse_vision_words(self, text: str) -> None:
        for word in self._vision_words:
            if word in text:
                raise DataError(
                    f"the text contains {word!r}, which the model would take for part of a picture; mark pictures by "
                    f"{IMAGE_PLACEHOLDER} and take {word!r} out of the text."
                )

    def _render(self, messages: list[dict[str, Any]]) -> str:
        try:
            return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise DataError(f"the chat template cannot render this prompt: {error}") from error

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
        (places,) = np.nonzero(ids == self.placeholder_id)
        if len(places) != len(pictures):
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


def _items(text: str) -> str | list[dict[str, str]]:
    """The text, or where it has placeholders a list of pictures and the texts between them."""
    if IMAGE_PLACEHOLDER not in text:
        return text
    items: list[dict[str, str]] = []
    for number, piece in enumerate(text.split(IMAGE_PLACEHOLDER)):
        if number:
            items.append({"type": "image"})
        if piece:
            items.append({"type": "text", "text": piece})
    return items


def _num_pictures(items: str | list[dict[str, str]]) -> int:
    return 0 if isinstance(items, str) else sum(item["type"] == "image" for item in items)
