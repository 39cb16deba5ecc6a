"""A command of fake engines for processes of their own: FOLDER WHAT [NODES RANKS_PER_NODE [OTHERS]]."""

import json
import sys
from pathlib import Path

import fakes

from easyr1.cluster import watch
from easyr1.cluster.place import Places
from easyr1.cluster.ray_group import RayGroup, open_ray_group
from easyr1.trainer.stop import Stopped, StopSignals

HANG_TIMEOUT_S = 2.0


def main(arguments: list[str]) -> int:
    folder, what, *places = arguments
    nodes, ranks, *others = (int(number) for number in places or ("1", "2"))
    timeline = f"{folder}/timeline.json" if what == "timeline" else None
    with open_ray_group(
        fakes.make,
        Places(nodes, ranks, "cpu", others=sum(others)),
        Path(folder),
        HANG_TIMEOUT_S,
        tell,
        timeline=timeline,
        room_timeout_s=15,
    ) as group:
        pids = [rank.identity.pid for rank in group.watch.ranks]
        Path(folder, "pids.json").write_text(json.dumps(pids))
        tell(f"ranks on {len({ray_node for ray_node, *_ in group.call_all('fake.node')})} nodes")
        return {"die": die, "stop": stop, "stuck": stuck}.get(what, add)(group)


def add(group: RayGroup) -> int:
    tell(f"added {[total for _, total in group.call_all('fake.add', 3)]}")
    return 0


def die(group: RayGroup) -> int:
    group.call_all("fake.die", 1)
    return 0


def stuck(group: RayGroup) -> int:
    """A rank that no signal ends, as far as the driver can see."""
    watch.kill = lambda pid: None
    group.call_all("fake.stop", 1)
    return 0


def stop(group: RayGroup) -> int:
    """What the trainer does: leave what can be thrown away, and save."""
    group.watch.hang_timeout_s = 600
    with StopSignals() as signals:
        try:
            with signals.at_once():
                tell("waiting")
                group.call_all("fake.sleep", 0, 3)
        except Stopped:
            add(group)
            raise
    return 0


def tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
