"""The training command with a rank that something happens to: python tests/broken_ranks.py WHERE SIGNAL key=value ...

In the second step rank 1 gets the signal while it does WHERE: sampling, reward, update, save; or the command itself
does, where WHERE ends with -driver. The process numbers of ranks go to ranks.json in the run folder, the time of the
signal to hit.json. With reward, it comes while the driver waits for scores, and a file slow is there from then on.
"""

import json
import os
import signal
import sys
import threading
import time

from easyr1.cli.main import main
from easyr1.trainer.loop import Trainer

METHODS = {"sampling": "rollout.generate", "update": "actor.update", "save": "actor.save"}
STEPS_DONE = {"sampling": 1, "reward": 1, "update": 2, "save": 2}  # the trainer counts a step before its update
IN_THE_MIDDLE_S = 0.02  # after the call has gone out
SCORING_S = 1.5  # after the answers have


def break_one(trainer: Trainer, where: str, number: int) -> None:
    where, _, who = where.partition("-")
    group = trainer.actor.engine.group  # type: ignore[attr-defined]
    pids = [rank.identity.pid for rank in group.watch.ranks]
    (trainer.checkpoints.folder / "ranks.json").write_text(json.dumps(pids))
    left = [1]

    def hit() -> None:
        if trainer.step == STEPS_DONE[where] and left:
            left.pop()
            (trainer.checkpoints.folder / "hit.json").write_text(json.dumps(time.time()))
            os.kill(os.getpid() if who else pids[1], number)

    start, score = group._start, trainer.collector.score

    def started(method, *arguments):
        call = start(method, *arguments)
        if method == METHODS.get(where):
            time.sleep(IN_THE_MIDDLE_S)
            hit()
        return call

    def scored(*arguments):
        if where == "reward" and trainer.step == STEPS_DONE[where]:
            (trainer.checkpoints.folder / "slow").touch()
            threading.Timer(SCORING_S, hit).start()
        return score(*arguments)

    group._start, trainer.collector.score = started, scored


if __name__ == "__main__":
    where, number, *arguments = sys.argv[1:]
    fit = Trainer.fit

    def broken(trainer: Trainer) -> dict[str, float]:
        break_one(trainer, where, signal.Signals[number])
        return fit(trainer)

    Trainer.fit = broken
    sys.exit(main(["train", *arguments]))
