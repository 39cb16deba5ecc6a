"""worker.hybrid_engine=false: how many ranks train and sample, and what is told where that cannot be."""

import pytest

from easyr1.config.load import load
from easyr1.config.plan import Facts, Plan
from easyr1.config.resolve import resolve
from easyr1.errors import ConfigError

APART = ["worker.hybrid_engine=false", "worker.rollout.n_gpus=2"]
CPU = Facts(device="cpu", num_devices=0, dry_run=True)


def gpus(count: int, **facts) -> Facts:
    return Facts(device="cuda", num_devices=count, **facts)


def plan_of(*argv: str, facts: Facts) -> Plan:
    config, given = load(["data.format_prompt=null", f"worker.reward.reward_function={__file__}:f", *argv])
    return resolve(config, given, facts)


@pytest.mark.parametrize(
    ("argv", "facts", "ranks"),
    (
        (APART, CPU, (1, 2)),
        ([*APART, "trainer.device=cpu", "trainer.n_gpus_per_node=2"], CPU, (2, 2)),
        (APART, gpus(4), (2, 2)),  # all that are left train
        ([*APART, "trainer.n_gpus_per_node=4"], gpus(8), (4, 2)),
        ([*APART, "trainer.n_gpus_per_node=8", "trainer.nnodes=2"], gpus(8), (16, 2)),  # on a third machine
        (["worker.rollout.n_gpus=2"], gpus(4), (4, 0)),
        ([*APART, "worker.rollout.name=vllm", "worker.rollout.tensor_parallel_size=2"], gpus(3), (1, 2)),
    ),
)
def test_ranks_that_train_and_others_that_sample(argv, facts, ranks):
    plan = plan_of(*argv, facts=facts)
    assert (plan.world_size, plan.sampling_ranks) == ranks
    assert plan.in_driver == (ranks == (1, 0))


@pytest.mark.parametrize(
    ("argv", "facts", "key", "told"),
    (
        (["worker.hybrid_engine=false"], CPU, "worker.rollout.n_gpus", "null, but worker.hybrid_engine=false"),
        (APART, gpus(1), "worker.rollout.n_gpus", "1 GPU that train and 2 that sample, 1 visible here"),
        (APART, gpus(2), "worker.rollout.n_gpus", "2 visible here; lower trainer.n_gpus_per_node or"),
        (
            [*APART, "trainer.n_gpus_per_node=4"],
            gpus(5),
            "trainer.n_gpus_per_node",
            "4 GPUs that train and 2 that sample, 5 visible here",
        ),
        (
            [*APART, "worker.rollout.tensor_parallel_size=3"],
            gpus(8),
            "worker.rollout.tensor_parallel_size",
            "3 ranks each cannot share out 2 ranks; set a divisor of 2, such as 2",
        ),
        (APART, gpus(8, cluster=True), "trainer.n_gpus_per_node", "which GPUs of a cluster train and which sample"),
    ),
)
def test_what_cannot_be_is_told_with_the_cure(argv, facts, key, told):
    with pytest.raises(ConfigError) as raised:
        plan_of(*argv, facts=facts)
    assert raised.value.key == key and told in str(raised.value)
