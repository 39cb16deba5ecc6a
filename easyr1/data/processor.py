"""One picture -> the ids and tensors that a model family wants. The only door to the families' processors.

The class that transformers has for a family is built around the Pillow image processor and the tokenizer; its video
processor, which needs torchvision, is left out. Two kinds of readers serve all families: `GridReader` for image
processors of the Qwen-VL kind, whose numbers follow from the size alone, and `FamilyReader` for every other one.
"""

import inspect
import math
import re
import threading
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from PIL import Image

from easyr1.errors import ConfigError, DataError

MODEL_KEY = "worker.actor.model.model_path"
TOKENIZER_KEY = "worker.actor.model.tokenizer_path"
BLANK = (64, 64)  # pixels of the picture that shows what a family makes of one
TEXT_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"})
# The same replacement of a picture by the same tokens; SmolVLM's own class wants num2words, for videos.
STAND_INS = {"SmolVLMProcessor": "Idefics3Processor"}
PICTURE_KEY = re.compile(r"(image|video|vision|boi|eoi)(_\w+)?_token_(id|index)")


@dataclass(frozen=True, eq=False)
class Measured:
    """What a picture of one size becomes, known without its pixels."""

    fitted: tuple[int, int]  # (width, height) after resizing to the pixel limits
    ids: np.ndarray  # int64, in the place of the one placeholder token
    before: str = ""  # plain text that the family writes in front of them
    after: str = ""


class Reader(Protocol):
    """Prepares pictures for one model. Safe for threads."""

    token: int  # the placeholder of one picture in a rendered prompt
    rule: str  # everything that decides what a picture becomes, for content hashes

    def measure(self, width: int, height: int) -> Measured:
        """Raises DataError for a picture that the family cannot take."""
        ...

    def resize(self, image: Image.Image, fitted: tuple[int, int]) -> Image.Image: ...

    def inputs(self, image: Image.Image) -> dict[str, np.ndarray]:
        """Model inputs of one upright RGB picture of its fitted size; the first dimension counts what is joined."""
        ...


@dataclass(frozen=True)
class PatchRule:
    """The numbers of an image processor that decide how a picture is resized."""

    patch_size: int  # pixels
    merge_size: int  # patches merged into one token, along each side
    min_pixels: int
    max_pixels: int

    @property
    def token_side(self) -> int:
        """Pixels along one side of a token."""
        return self.patch_size * self.merge_size


def is_grid_kind(image_processor: Any) -> bool:
    """Whether it is the Qwen-VL kind: its own `smart_resize` alone decides about the grid of patches."""
    return type(image_processor).__name__.startswith("Qwen2VLImageProcessor")


def patch_rule(image_processor: Any, min_pixels: int | None = None, max_pixels: int | None = None) -> PatchRule:
    """The rule of an image processor of the Qwen-VL kind.

    Limits that are None are the processor's own. Raises DataError for processors of another kind, ConfigError for
    limits that exclude each other.
    """
    if not is_grid_kind(image_processor):
        raise DataError(f"{type(image_processor).__name__} does not resize as Qwen2-VL's image processor does.")
    size = image_processor.size
    rule = PatchRule(
        patch_size=image_processor.patch_size,
        merge_size=image_processor.merge_size,
        min_pixels=size["shortest_edge"] if min_pixels is None else min_pixels,
        max_pixels=size["longest_edge"] if max_pixels is None else max_pixels,
    )
    _check_limits(rule.min_pixels, rule.max_pixels)
    return rule


def _check_limits(min_pixels: int | None, max_pixels: int | None) -> None:
    if min_pixels is not None and max_pixels is not None and min_pixels > max_pixels:
        raise ConfigError("data.min_pixels", f"{min_pixels} is above data.max_pixels, {max_pixels}.")


def fit(width: int, height: int, rule: PatchRule) -> tuple[int, int]:
    """(width, height) that a picture is resized to: whole tokens, inside the pixel budget, same shape if possible.

    This is transformers' own rule; raises DataError for a picture more than 200 times as long as wide.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    try:
        fitted_height, fitted_width = smart_resize(
            height, width, rule.token_side, min_pixels=rule.min_pixels, max_pixels=rule.max_pixels
        )
    except ValueError as error:
        raise DataError(f"{width}x{height} pixels: {error}; crop or pad the picture.") from error
    return fitted_width, fitted_height


class GridReader:
    """For image processors of the Qwen-VL kind: pictures are resized here, once, and cut into patches there."""

    def __init__(
        self, image_processor: Any, token: int, min_pixels: int | None = None, max_pixels: int | None = None
    ) -> None:
        self.token = token
        self.patches = patch_rule(image_processor, min_pixels, max_pixels)
        self.rule = repr(self.patches)
        self._image_processor = image_processor
        self._known: dict[tuple[int, int], Measured] = {}

    def measure(self, width: int, height: int) -> Measured:
        fitted = fit(width, height, self.patches)
        if fitted not in self._known:  # pictures of one size share their ids
            side = self.patches.token_side
            ids = np.full((fitted[0] // side) * (fitted[1] // side), self.token, dtype=np.int64)
            self._known[fitted] = Measured(fitted, ids)
        return self._known[fitted]

    def resize(self, image: Image.Image, fitted: tuple[int, int]) -> Image.Image:
        return _resized(image, fitted, self._image_processor)

    def inputs(self, image: Image.Image) -> dict[str, np.ndarray]:
        """pixel_values (patches, channels) float32, image_grid_thw (1, 3) int64."""
        processed = self._image_processor(images=[image], do_resize=False, return_tensors="np")
        return {name: _array(processed[name]) for name in ("pixel_values", "image_grid_thw")}


class FamilyReader:
    """For any other family: its own processor resizes, cuts and says by what text a picture is replaced.

    Pixel limits are honoured before it: a picture of more (or fewer) pixels is shrunk (or enlarged), its shape kept.
    """

    def __init__(self, processor: Any, min_pixels: int | None = None, max_pixels: int | None = None) -> None:
        """`processor` comes from `family_processor`. Raises ConfigError where it works in another way."""
        _check_limits(min_pixels, max_pixels)
        self._processor = processor
        self._limits = (min_pixels, max_pixels)
        self.token = int(processor.tokenizer.convert_tokens_to_ids(processor.image_token))
        self.rule = f"{type(processor).__name__} {_settings(processor)} {self._limits}"
        added = sorted((str(token) for token in processor.tokenizer.added_tokens_decoder.values()), key=len)
        self._special = re.compile("|".join(re.escape(token) for token in reversed(added)))
        self._known: dict[tuple[int, int], Measured] = {}
        self._lock = threading.Lock()
        merged = processor._merge_kwargs(
            processor.valid_processor_kwargs, tokenizer_init_kwargs=processor.tokenizer.init_kwargs
        )
        self._options = merged["images_kwargs"] | {"return_tensors": "np"}
        self._names = self._input_names()

    def __getstate__(self) -> dict[str, Any]:
        """For another process; a lock stays behind."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def measure(self, width: int, height: int) -> Measured:
        """Known after one blank picture of that size went through the family's processor."""
        if (width, height) not in self._known:
            fitted = _within(width, height, *self._limits)
            _, replacement = self._process(Image.new("RGB", fitted), do_rescale=False, do_normalize=False)
            with self._lock:
                self._known[width, height] = self._measured(fitted, replacement)
        return self._known[width, height]

    def resize(self, image: Image.Image, fitted: tuple[int, int]) -> Image.Image:
        return _resized(image, fitted, self._processor.image_processor)

    def inputs(self, image: Image.Image) -> dict[str, np.ndarray]:
        """What the family's model takes, named as its forward names it."""
        processed, _ = self._process(image)
        return {name: _array(processed[name]) for name in self._names}

    def _process(self, image: Image.Image, **options: bool) -> tuple[Any, str]:
        """All that the processor makes of one picture, and the text that replaces its placeholder."""
        images, *_ = self._processor.prepare_inputs_layout(images=[image], text=[self._processor.image_token])
        try:
            processed, (replacement,) = self._processor._process_images(images, **self._options | options)
        except ValueError as error:
            raise DataError(f"{image.width}x{image.height} pixels: {error}; crop or pad the picture.") from error
        return processed, replacement

    def _measured(self, fitted: tuple[int, int], replacement: str) -> Measured:
        """The replacement cut into its special tokens, whose ids depend on nothing else, and the text around them."""
        special = list(self._special.finditer(replacement))
        first, last = special[0].start(), special[-1].end()
        ids = self._processor.tokenizer.encode(replacement[first:last], add_special_tokens=False)
        return Measured(fitted, np.asarray(ids, dtype=np.int64), replacement[:first], replacement[last:])

    def _input_names(self) -> tuple[str, ...]:
        """What a whole call returns beside ids: the helpers that it takes away reach no model."""
        blank = Image.new("RGB", BLANK)
        try:
            whole = self._processor(images=[blank], text=[self._processor.image_token], return_tensors="np")
            processed, _ = self._process(blank)
        except (AttributeError, TypeError, ValueError, NotImplementedError, DataError) as error:
            raise self._unusable(error) from error
        names = tuple(name for name in whole if name not in TEXT_INPUTS)
        if missing := [name for name in names if name not in processed]:
            raise self._unusable(f"it makes {', '.join(missing)} of picture and text together")
        return names

    def _unusable(self, reason: object) -> ConfigError:
        return ConfigError(
            MODEL_KEY,
            f"{type(self._processor).__name__} does not process one picture after the other as this program needs it "
            f"({reason}); docs/models.md lists the families that work",
        )


def image_token_id(config: Any) -> int | None:
    """The id that a model's configuration gives to the features of pictures; None for a text model."""
    found = (getattr(config, name, None) for name in ("image_token_id", "image_token_index"))
    return next((int(token) for token in found if token is not None), None)


def picture_keys(config: Any) -> dict[str, int]:
    """Name -> id of the tokens that stand for pictures and videos or mark where they begin and end."""
    found = {name: value for name, value in config.to_dict().items() if PICTURE_KEY.fullmatch(name)}
    return {name: int(value) for name, value in found.items() if value is not None}


def picture_token_ids(processor: Any) -> frozenset[int]:
    """Ids that stand for pictures or videos or mark where they begin, break and end, as the family names them."""
    found: set[Any] = set(processor.image_token_ids) | set(processor.video_token_ids)
    found |= set(getattr(processor, "row_col_ids", ())) | {getattr(processor, "fake_image_token_id", None)}
    found.add(processor.tokenizer.convert_tokens_to_ids(processor.image_token))
    added = processor.tokenizer.added_tokens_decoder
    return frozenset(int(token) for token in found if token is not None and int(token) in added)


def family_processor(config: Any, saved: dict[str, Any], image_processor: Any, tokenizer: Any) -> Any:
    """The processor class of a family, for pictures alone; `saved` is what its files say of it.

    Raises ConfigError for families without one, or whose special tokens the tokenizer lacks.
    """
    cls = _images_only(_processor_class(config, saved))
    size = len(tokenizer)
    try:
        processor = cls.from_args_and_dict([image_processor, tokenizer], _known_settings(cls, saved))
        token = processor.image_token
    except (AttributeError, TypeError, ValueError, ImportError) as error:
        raise ConfigError(MODEL_KEY, f"{cls.__name__} cannot be built for this model: {error}") from error
    if len(tokenizer) != size or tokenizer.convert_tokens_to_ids(token) not in tokenizer.added_tokens_decoder:
        raise ConfigError(TOKENIZER_KEY, f"the tokenizer lacks special tokens that {cls.__name__} writes")
    return processor


def _processor_class(config: Any, saved: dict[str, Any]) -> type:
    import transformers
    from transformers.models.auto import processing_auto

    name = saved.get("processor_class") or vars(processing_auto)["PROCESSOR_MAPPING_NAMES"].get(config.model_type)
    if name == "PixtralProcessor":
        from easyr1.data.pixtral import PixtralPictures

        return PixtralPictures
    if not isinstance(name, str) or not hasattr(transformers, name):
        raise ConfigError(MODEL_KEY, f"transformers has no processor for {config.model_type!r}")
    return getattr(transformers, STAND_INS.get(name, name))


def _images_only(cls: Any) -> Any:
    """The class without the parts that pictures do not need: `ProcessorMixin` asks it which parts it has."""

    def get_attributes(_: Any) -> list[str]:
        return [name for name in cls.get_attributes() if "video" not in name and "audio" not in name]

    return type(cls.__name__, (cls,), {"get_attributes": classmethod(get_attributes)})


def _known_settings(cls: Any, saved: dict[str, Any]) -> dict[str, Any]:
    """Those settings of the files that the class takes."""
    taken = set(inspect.signature(cls.__init__).parameters) - {"image_processor", "tokenizer", "video_processor"}
    return {name: value for name, value in saved.items() if name in taken}


def _settings(processor: Any) -> str:
    """The numbers of a processor and of its image processor, in one stable text."""
    plain = (bool, int, float, str, type(None))
    own = {name: value for name, value in sorted(vars(processor).items()) if isinstance(value, plain)}
    own.pop("chat_template", None)
    return f"{own} {processor.image_processor.to_json_string()}"


def _within(width: int, height: int, min_pixels: int | None, max_pixels: int | None) -> tuple[int, int]:
    """(width, height) of the same shape with pixels inside the limits.

    >>> _within(400, 100, None, 10_000), _within(10, 10, 400, None), _within(30, 20, 100, 1000)
    ((200, 50), (20, 20), (30, 20))
    """
    pixels = width * height
    if max_pixels is not None and pixels > max_pixels:
        factor = math.sqrt(max_pixels / pixels)
        return max(1, math.floor(width * factor)), max(1, math.floor(height * factor))
    if min_pixels is not None and pixels < min_pixels:
        factor = math.sqrt(min_pixels / pixels)
        return math.ceil(width * factor), math.ceil(height * factor)
    return width, height


def _resized(image: Image.Image, fitted: tuple[int, int], image_processor: Any) -> Image.Image:
    return image if image.size == fitted else image.resize(fitted, Image.Resampling(int(image_processor.resample)))


def _array(value: Any) -> np.ndarray:
    """float32 for real numbers, int64 for counts and masks."""
    array = np.asarray(value)
    return array.astype(np.float32 if np.issubdtype(array.dtype, np.floating) else np.int64, copy=False)
