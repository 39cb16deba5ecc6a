"""The rows of a run, read and checked before a model is built, and what their numbers mean for it."""

from dataclasses import dataclass, replace

from easyr1.algorithms.needs import NEEDS
from easyr1.config.paths import find_file
from easyr1.config.plan import Facts, Plan
from easyr1.config.schema import Config
from easyr1.data.chat import Chat
from easyr1.data.dataset import Columns, Limits, PromptSet, load_prompts
from easyr1.data.heads import Heads
from easyr1.data.loader import Share
from easyr1.data.media import MediaStore
from easyr1.data.sources import labels
from easyr1.engines.vllm_settings import takes_pictures, vision_of
from easyr1.models.build import load_model_config
from easyr1.models.sequence import check_heads
from easyr1.rewards.score import hidden_columns_note
from easyr1.tracking.progress import Progress
from easyr1.trainer.parts import critic_spec, model_spec


@dataclass(frozen=True)
class Data:
    """The rows of a run, read and checked, and what makes prompts of them."""

    chat: Chat
    media: MediaStore | None
    train: PromptSet
    val: PromptSet
    vllm_takes_model: bool


def read_data(config: Config, plan: Plan, progress: Progress) -> Data:
    """Tokenizer, image processor and all rows. No weights are loaded."""
    takes = check_models(config, plan)
    chat = load_chat(config)
    media = media_store(chat, config)
    train, val = (read_prompts(config, name, chat, media, progress) for name in ("train", "val"))
    return Data(chat, media, train, val, takes)


def load_chat(config: Config) -> Chat:
    """Tokenizer, image processor and templates."""
    model = config.worker.actor.model
    return Chat.load(
        str(model.model_path),
        tokenizer_path=model.tokenizer_path,
        trust_remote_code=model.trust_remote_code,
        override_chat_template=config.data.override_chat_template,
        format_prompt=config.data.format_prompt,
    )


def check_models(config: Config, plan: Plan) -> bool:
    """What the models' configurations tell: keys of override_config, heads that ranks can share out, and whether vLLM
    can be given the pictures. ConfigError where it cannot, but must.
    """
    size, model_config = config.worker.actor.ulysses_size, load_model_config(model_spec(config, plan))
    check_heads(model_config, size)
    if NEEDS[config.algorithm.adv_estimator].values:
        check_heads(load_model_config(critic_spec(config, plan)), size, "worker.critic.ulysses_size")
    if config.worker.rollout.name == "vllm":
        vision_of(model_config)
    return takes_pictures(model_config)


def media_store(chat: Chat, config: Config) -> MediaStore | None:
    """The store of pictures and videos; None for a text model."""
    data = config.data
    video = {"fps": data.video_fps, "max_frames": data.max_video_frames}
    return chat.media_store(data.min_pixels, data.max_pixels, Heads(), **video)


def with_rows(facts: Facts, config: Config, data: Data) -> Facts:
    """The facts, with what rows and models tell."""
    shares = row_shares(config, data.train)
    return replace(
        with_prompts(facts, data.vllm_takes_model, data.train, data.val),
        train_rows=len(data.train) if shares is None else sum(share.draws for share in shares),
        val_rows=len(data.val),
    )


def with_prompts(facts: Facts, vllm_takes_model: bool, *prompts: PromptSet) -> Facts:
    """The facts, with what sampler and lengths hang on."""
    reports = [one.report for one in prompts]
    return replace(
        facts,
        vllm_takes_model=vllm_takes_model,
        max_images=max(report.max_pictures for report in reports),
        max_videos=max(report.max_videos for report in reports),
        max_prompt_tokens=max(report.percentiles["p100"] for report in reports),
    )


def row_shares(config: Config, train: PromptSet) -> list[Share] | None:
    """How many draws of an epoch each source of training rows gets; None where every row is drawn once."""
    weights = config.data.train_weights
    if weights is None:
        return None
    return [Share.weighted(rows, weight) for (_, rows), weight in zip(train.sources, weights, strict=True)]


def row_notes(config: Config, data: Data) -> list[str]:
    """What became of the rows, and what of them the reward does not see."""
    notes = [f"training rows: {data.train.report}", f"validation rows: {data.val.report}"]
    if shares := row_shares(config, data.train):
        names = labels([spec for spec, _ in data.train.sources])
        parts = (
            f"{share.draws} from {names[spec]} ({share.rows} rows)"
            for share, (spec, _) in zip(shares, data.train.sources, strict=True)
        )
        notes.append(f"an epoch draws {', '.join(parts)} (data.train_weights)")
    hidden = hidden_columns_note(data.train[0].columns)
    return notes + ([hidden] if hidden else [])


def read_prompts(config: Config, name: str, chat: Chat, media: MediaStore | None, progress: Progress) -> PromptSet:
    """The rows of data.train_files ("train") or data.val_files ("val")."""
    data = config.data
    with progress.phase(f"reading {'training' if name == 'train' else 'validation'} rows") as tick:
        return load_prompts(
            data.train_files if name == "train" else data.val_files,
            chat,
            media,
            Limits(data.max_prompt_length, data.filter_overlong_prompts),
            columns=Columns(data.prompt_key, data.answer_key, data.image_key, data.video_key),
            image_dir=None if data.image_dir is None else find_file(data.image_dir, "data.image_dir"),
            workers=data.filter_overlong_prompts_workers,
            progress=tick,
        )
