"""What a rank makes of a call, without Ray around it."""

from easyr1.cluster.parcel import Beat, pack, unpack
from easyr1.cluster.worker import Worker


class Engine:
    def save(self, folder, progress=None):
        progress(1, 2)
        return folder

    def load(self, folder):
        return folder


def worker() -> Worker:
    """One that did not take over this process."""
    made = Worker.__new__(Worker)
    made.engines, made.beat, made.dropped, made.may_drop = {"actor": Engine()}, Beat(), 0, False
    return made


def test_methods_report_progress_whether_ranks_get_shares_or_all_the_same():
    for arguments, share in ((("there",), None), ((), pack("there"))):
        outcome = unpack(worker().call(1, "actor.save", pack(arguments), share, True))
        assert outcome.value == "there" and (outcome.beat.done, outcome.beat.all) == (1, 2), outcome.trace
        assert unpack(worker().call(1, "actor.load", pack(arguments), share, True)).value == "there"
