"""A tokenizer of 512 tokens for the tiny model: Qwen's special tokens, bytes, the words of the quickstart.

It is a byte-level BPE, so it takes any text, only with more tokens. Nothing here is read from a file or the network.
"""

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

VOCAB_SIZE = 512
END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
SPECIAL_TOKENS = (
    END_OF_TEXT,
    "<|im_start|>",
    END_OF_TURN,
    VISION_START,
    VISION_END,
    "<|vision_pad|>",
    IMAGE,
    VIDEO,
)
TAGS = ("<think>", "</think>", "<answer>", "</answer>")  # one token each, but text: a decoded answer shows them

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for item in message.content %}
{%- if item.type in ('image', 'video') %}
{{- '<|vision_start|><|' + item.type + '_pad|><|vision_end|>' }}
{%- else %}
{{- item.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# The words of the quickstart come first and often, so that they are one token each; the rest helps with other texts.
CORPUS = (
    *["user", "assistant", "system", "what you see", "digit", "I see 1. I see 3 and 4."] * 20,
    *["Which digit is this? Reply as what", "Which of the two digits is larger? Reply as what"] * 20,
    "Find the length of the side x in the triangle. What is the measure of the angle in the figure?",
    "First think the question through, as an inner monologue, and then give the final answer.",
    "Put the reasoning between these tags, and after it the answer alone, like this.",
    "Solve the problem step by step. Let me look at the picture: there are two circles and one square.",
    "How many of them are red? The number is equal to the sum of the other numbers, so the answer must be this one.",
    "Compare the area with the perimeter, then round the result to the nearest tenth. Explain what you have found.",
    "The line through the center is parallel to the base, and half of its height, or \\frac{1}{2} \\boxed{x}.",
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Always the same tokenizer; end of sequence is <|im_end|>, as in Qwen's chat models.

    Text is split as Qwen2 does, because transformers loads a tokenizer of model type qwen2_5_vl as a Qwen2 one.
    """
    qwen = Qwen2Tokenizer().backend_tokenizer
    core = Tokenizer(models.BPE())
    core.normalizer, core.pre_tokenizer, core.decoder = qwen.normalizer, qwen.pre_tokenizer, qwen.decoder
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS) - len(TAGS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(CORPUS, trainer)
    core.add_special_tokens(list(SPECIAL_TOKENS))
    core.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
