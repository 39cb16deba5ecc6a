"""Sampling with vLLM, in the trainer's own process: tokens and processed pictures in, answers and log-probs out.

The one door to vllm, which is imported when an engine is built. Prompts go in as the trainer's token ids and its own
pixel tensors, so nothing is tokenised or resized a second time. Does not know rewards, text or optimizers.
"""

# pyright: reportMissingImports=false
# (an optional package, which is not in the environment of every checkout)

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from easyr1 import seeding
from easyr1.batch import Completion, Prompt
from easyr1.config.sampler import wrong_version
from easyr1.config.supported import installed_vllm
from easyr1.engines.guest import LARGEST_SEED, own_random_numbers, random_numbers_kept, signals_held_back
from easyr1.engines.pack import MediaInputs
from easyr1.engines.protocols import Progress, Sampling
from easyr1.engines.sampling import WholeDistribution
from easyr1.engines.vllm_adapters import Adapters
from easyr1.engines.vllm_settings import Vision, VllmSettings, arguments, set_environment, set_rank, vision_of
from easyr1.errors import ConfigError, DataError, first_line

PICTURE_INPUTS = {"pixel_values", "image_grid_thw"}  # of the Qwen-VL kind
BANNED = "easyr1_banned_ids"  # name in vLLM's additional_config
IN_PROCESS = "easyr1"  # name among vLLM's ways to transfer weights


class VllmRollout:
    """A RolloutEngine with weights of its own, given by `load`; before that, those of the model's folder.

    `banned` ids are never drawn. A call that is given up leaves the engine ready for the next one.
    """

    def __init__(
        self,
        settings: VllmSettings,
        media: MediaInputs,
        stop_ids: Iterable[int],
        banned: Iterable[int] = (),
        vision: Vision | None = None,
        llm: Any = None,  # for tests of the order of calls
    ) -> None:
        self.settings = settings
        self.media = media
        self.stop_ids = sorted(stop_ids)
        self.vision = vision
        self.version = 0
        self.asleep = False
        self.adapters = Adapters(settings.lora_rank, settings.lora_alpha)
        self.adapter: Any = None  # vLLM's request for the newest one
        self._updating = False  # whether vLLM takes weights in
        self.llm = start(settings, sorted(banned), sees=vision is not None) if llm is None else llm

    @property
    def droppable(self) -> tuple[str, ...]:
        """Calls of which nothing is left when they end early; not of ranks that compute together."""
        return ("generate",) if self.settings.tensor_parallel_size == 1 else ()

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """For each prompt its `sampling.n` answers. DataError for a prompt that vLLM cannot take."""
        assert not self.asleep, "the sampler rests; it must be given weights first"
        asked, own = self._with_peers(prompts)
        if not asked:
            return []
        call = _Call(self, asked, sampling, progress)
        with own_random_numbers(sampling.seed, asked[0]):
            try:
                call.ask()
                call.finish()
            except BaseException:  # Stopped, above all
                call.give_up()
                raise
        return call.answers[own]

    def _with_peers(self, prompts: Sequence[Prompt]) -> tuple[Sequence[Prompt], slice]:
        """What all ranks that hold one engine together are asked, in one order, and which of it is this rank's."""
        if self.settings.tensor_parallel_size == 1:
            return prompts, slice(None)
        from vllm.distributed import get_tp_group

        group = get_tp_group()
        shares: list[list[Prompt]] = [[]] * group.world_size
        torch.distributed.all_gather_object(shares, list(prompts), group=group.cpu_group)
        start = sum(map(len, shares[: group.rank_in_group]))
        return [prompt for share in shares for prompt in share], slice(start, start + len(prompts))

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take new weights, one tensor after the other, and forget all that was computed with the old ones."""
        with signals_held_back():
            self.feed(weights)
            self.settle(version)

    def feed(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take some full tensors, and of adapters that are handed over as such A and B."""
        if self.asleep and not self._updating:
            self.llm.wake_up(tags=["weights"])
        base = self.adapters.without(weights)
        if (first := next(base, None)) is None:
            return
        if not self._updating:
            self.llm.collective_rpc("start_weight_update")
            self._updating = True
        self.llm.collective_rpc("update_weights", kwargs={"update_info": {"weights": chain([first], base)}})

    def settle(self, version: int) -> None:
        """All have come: answers carry this version from now on."""
        assert self._updating or self.adapters.tensors, "vLLM holds weights of its own and was given none"
        if self._updating:
            self.llm.collective_rpc("finish_weight_update")
            self._updating = False
        if self.adapters.tensors:
            with self.adapters.files() as folder:
                self.adapter = adapter_request(self.adapters.count, folder)
                assert self.llm.llm_engine.add_lora(self.adapter)
        self._forget()
        if self.asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self.asleep = False
        self.version = version

    def rest(self) -> None:
        """No answers are wanted until the next `load`: give the memory of weights and caches to the trainer.

        Where adapters alone will come, the base is kept in the host's memory.
        """
        if self.settings.sleeps and not self.asleep:
            self.llm.sleep(level=1 if self.settings.lora_rank else 2)
            self.asleep = True

    def _forget(self) -> None:
        """Keys and values of prompts, processed pictures, and features that the old vision tower made of them."""
        engine = self.llm.llm_engine
        self.llm.reset_prefix_cache()
        engine.reset_mm_cache()
        engine.reset_encoder_cache()


@dataclass
class _Call:
    """One call of `generate`: the answers on their way and those that are there."""

    rollout: VllmRollout
    prompts: Sequence[Prompt]
    sampling: Sampling
    progress: Progress | None
    waiting: dict[str, tuple[int, int]] = field(default_factory=dict)  # name of a request -> (prompt, answer)
    answers: list[list[Any]] = field(default_factory=list)
    tokens: int = 0  # of the answers that are there

    @property
    def engine(self) -> Any:
        return self.rollout.llm.llm_engine

    def ask(self) -> None:
        """One request for each answer; those of a group find their prompt in the prefix cache."""
        self.answers = [[None] * self.sampling.n for _ in self.prompts]
        for index, prompt in enumerate(self.prompts):
            wanted = engine_input(prompt, self.rollout)
            for number in range(self.sampling.n):
                name = f"{index}-{number}"
                self.waiting[name] = (index, number)
                self._add(name, wanted, prompt, number)

    def _add(self, name: str, wanted: Any, prompt: Prompt, number: int) -> None:
        params = sampling_params(self.sampling, self.rollout.stop_ids, self._seed(prompt, number))
        try:
            self.engine.add_request(name, wanted, params, lora_request=self.rollout.adapter)
        except refusals() as error:
            raise DataError(f"row {prompt.row}: vLLM does not take the prompt ({first_line(error)})") from error

    def _seed(self, prompt: Prompt, number: int) -> int | None:
        if not self.rollout.settings.seed_answers:
            return None
        place = (prompt.epoch, prompt.index, prompt.attempt, number)
        return int(seeding.generator(self.sampling.seed, *place).integers(LARGEST_SEED))

    def finish(self) -> None:
        """Step until every answer is there. A signal is heeded between two steps."""
        while self.waiting:
            with signals_held_back():
                outputs = self.engine.step()
            for output in outputs:
                if output.finished:
                    self._take(*self.waiting.pop(output.request_id), output)

    def _take(self, index: int, number: int, output: Any) -> None:
        prompt, (answer,) = self.prompts[index], output.outputs
        if len(output.prompt_token_ids) != len(prompt.ids):
            raise DataError(
                f"row {prompt.row}: the trainer's prompt has {len(prompt.ids)} tokens, "
                f"vLLM's {len(output.prompt_token_ids)}"
            )
        assert len(answer.logprobs.logprobs) == len(answer.token_ids)
        self.answers[index][number] = Completion(
            ids=np.array(answer.token_ids, dtype=np.int64),
            log_probs=np.array(answer.logprobs.logprobs, dtype=np.float32),
            finish_reason="stop" if answer.finish_reason == "stop" else "length",
            group_id=prompt.group_id,
            weights_version=self.rollout.version,
        )
        if self.progress is not None:
            total = len(self.prompts) * self.sampling.n
            self.tokens += len(answer.token_ids)
            self.progress(total - len(self.waiting), total, self.tokens)

    def give_up(self) -> None:
        """Take back what was asked for."""
        with signals_held_back():
            self.engine.abort_request(list(self.waiting))
            while self.engine.has_unfinished_requests():
                self.engine.step()


def vllm_rollout(
    settings: VllmSettings, model_config: Any, banned: Iterable[int], media: MediaInputs, stop_ids: Iterable[int]
) -> VllmRollout:
    """The sampler of a model that is trained; ConfigError where vLLM cannot be given its pictures."""
    return VllmRollout(settings, media, stop_ids, banned, vision_of(model_config))


def start(settings: VllmSettings, banned: Sequence[int], sees: bool) -> Any:
    """vllm.LLM with these settings. ConfigError where it is missing, of another version or refuses them."""
    if (error := wrong_version(installed_vllm())) is not None:
        raise error
    set_environment(settings.device)
    if settings.world_size > 1:
        set_rank()
    import vllm

    ours: dict[str, Any] = {"weight_transfer_config": _in_process()}
    if banned:
        ours["logits_processors"] = [_bans_class()]
    asked = arguments(settings, sees)
    asked["additional_config"] = dict(asked.get("additional_config") or {}) | {BANNED: list(banned)}
    with random_numbers_kept():
        try:
            llm = vllm.LLM(**asked, **ours)
        except refusals() as error:
            raise ConfigError("worker.rollout", f"vLLM {vllm.__version__} refuses: {first_line(error)}") from error
    llm.collective_rpc(_report_whole_distributions)
    if settings.tensor_parallel_size > 1:
        _unlink_shared_memory()
    return llm


def _unlink_shared_memory() -> None:
    """vLLM's ranks talk in shared memory, which stays when they end; on a CPU some has the same name in every run, and
    the next one could not make it. Whoever has it mapped, as all ranks do by now, keeps it without a name.
    """
    from vllm.distributed import get_tp_group

    group = get_tp_group()
    name = getattr(getattr(group.device_communicator, "dist_module", None), "group_name", None)
    if name is not None:
        Path(f"/dev/shm/{name}_{group.rank_in_group}").unlink(missing_ok=True)
    buffer = getattr(group.mq_broadcaster, "buffer", None)
    if buffer is not None and buffer.is_creator:
        buffer.is_creator = False
        buffer.shared_memory.unlink()


def refusals() -> tuple[type[Exception], ...]:
    """What vLLM raises where it does not take what it is given."""
    from vllm.exceptions import VLLMError

    return ValueError, TypeError, VLLMError


def sampling_params(sampling: Sampling, stop_ids: Sequence[int], seed: int | None) -> Any:
    """vLLM's form of it. Ends of answers are `stop_ids` alone, whatever the tokenizer's files say."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p if sampling.temperature else 1.0,
        top_k=max(sampling.top_k, 0) if sampling.temperature else 0,
        max_tokens=sampling.max_tokens,
        ignore_eos=True,
        stop_token_ids=[] if sampling.ignore_eos else list(stop_ids),
        seed=seed,
        logprobs=0,  # of the drawn token alone
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def engine_input(prompt: Prompt, rollout: VllmRollout) -> Any:
    """A prompt as vLLM's engine takes it once tokens and pictures are processed."""
    from vllm.inputs import mm_input, tokens_input

    ids = prompt.ids.tolist()
    if not prompt.media:
        return tokens_input(ids)
    vision = rollout.vision
    assert vision is not None
    pictures = [rollout.media(handle) for handle in prompt.media]
    if any(set(picture) != PICTURE_INPUTS for picture in pictures):
        raise DataError(f"row {prompt.row}: vLLM is given pictures only, no videos; set worker.rollout.name=torch")
    counts = [int(picture["image_grid_thw"].prod()) // vision.merge_size**2 for picture in pictures]
    hashes = {"image": list(prompt.media)}  # handles are hashes of the pixels
    return mm_input(ids, _items(pictures, rollout), hashes, {"image": _places(prompt, vision.token, counts)})


def _items(pictures: Sequence[Any], rollout: VllmRollout) -> Any:
    """The pictures' tensors in the fields that the model's class declares."""
    from vllm.multimodal.inputs import MultiModalKwargsItems

    joined: Any = {name: torch.cat([torch.as_tensor(one[name]) for one in pictures]) for name in PICTURE_INPUTS}
    fields = rollout.llm.llm_engine.renderer.mm_processor._get_mm_fields_config(joined, {})
    return MultiModalKwargsItems.from_hf_inputs(joined, fields)


def _places(prompt: Prompt, token: int, counts: Sequence[int]) -> list[Any]:
    """Where each picture's tokens lie, `counts` of them one after the other."""
    from vllm.multimodal.inputs import PlaceholderRange

    (places,) = np.nonzero(prompt.ids == token)
    starts = np.cumsum([0, *counts])
    ends = [places[start : start + count] for start, count in zip(starts, counts, strict=False)]
    whole = all(len(own) == count and own[-1] - own[0] == count - 1 for own, count in zip(ends, counts, strict=True))
    if len(places) != starts[-1] or not whole:
        raise DataError(f"row {prompt.row}: {len(places)} picture tokens, but its pictures make {list(counts)}")
    return [PlaceholderRange(offset=int(own[0]), length=count) for own, count in zip(ends, counts, strict=True)]


def _bans_class() -> type:
    """vLLM's kind of logits processor that forbids ids in every request."""
    from vllm.v1.sample.logits_processor import LogitsProcessor

    class Bans(LogitsProcessor):
        def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
            self.ids = torch.tensor(vllm_config.additional_config[BANNED], dtype=torch.long, device=device)

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any) -> None:
            pass

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits.index_fill_(-1, self.ids, float("-inf"))

    return Bans


def _report_whole_distributions(worker: Any) -> None:
    """Runs in each of vLLM's workers."""
    sampler = worker.model_runner.sampler
    sampler.topk_topp_sampler = WholeDistribution(sampler.topk_topp_sampler)


@cache
def _in_process() -> Any:
    """vLLM's configuration of weights that come from this process, tensor by tensor, as Hugging Face has them."""
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    from vllm.distributed.weight_transfer.base import WeightTransferEngine
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    class InProcess(WeightTransferEngine):
        def init_transfer_engine(self, init_info: Any) -> None: ...

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def update_weights(self, update_info: Any) -> None:
            self.model.load_weights(update_info["weights"])

        receive_weights = update_weights

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None: ...

    WeightTransferEngineFactory.register_engine(IN_PROCESS, InProcess)
    return WeightTransferConfig(backend=IN_PROCESS)


def adapter_request(number: int, folder: str) -> Any:
    """Adapters in a folder as a request names them."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(f"policy-{number}", number, folder)
