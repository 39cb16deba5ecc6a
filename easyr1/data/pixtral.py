"""The processor of Pixtral and Mistral Small for pictures alone.

transformers' PixtralProcessor cannot be imported without torchvision, though it needs it for nothing that is used
here. This one makes the same inputs, and replaces a picture's placeholder by the same tokens: a row of [IMG] for each
row of patches, with [IMG_BREAK] between rows and [IMG_END] behind the last.
"""

from typing import Any

from transformers.processing_utils import ProcessorMixin


class PixtralPictures(ProcessorMixin):
    """Takes the settings of a saved PixtralProcessor."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        patch_size: int = 16,
        spatial_merge_size: int = 1,
        chat_template: str | None = None,
        image_token: str = "[IMG]",
        image_break_token: str = "[IMG_BREAK]",
        image_end_token: str = "[IMG_END]",
    ) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.side = patch_size * spatial_merge_size  # pixels along one side of a token
        self.image_token, self.image_break_token, self.image_end_token = (
            image_token,
            image_break_token,
            image_end_token,
        )

    @property
    def image_token_ids(self) -> list[int]:
        words = [self.image_token, self.image_break_token, self.image_end_token]
        return self.tokenizer.convert_tokens_to_ids(words)

    @image_token_ids.setter
    def image_token_ids(self, value: list[int]) -> None:
        raise AttributeError("they follow from the tokens")

    def _process_images(self, images: Any, **options: Any) -> tuple[Any, list[str]]:
        return super()._process_images(images, **options | {"patch_size": self.side})

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        height, width = (int(pixels) // self.side for pixels in image_inputs["image_sizes"][image_idx])
        return self.image_break_token.join([self.image_token * width] * height) + self.image_end_token
