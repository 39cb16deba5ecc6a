"""Calls that reach all ranks, with shares, progress and errors."""


def test_every_rank_is_called_and_they_reach_one_another(group):
    assert group.num_replicas == 2
    assert group.call_all("fake.add", 3) == [(0, 6.0), (1, 6.0)]


def test_shares_come_back_in_order_and_their_progress_adds_up(group):
    told = []
    shares = [list(range(3)), list(range(90))]
    doubled = group.call_sharded("fake.share", shares, 2, progress=lambda done, all: told.append((done, all)))
    assert doubled == [[2 * item for item in share] for share in shares]
    assert told[-1] == (93, 93)
    assert told == sorted(told) and {all for _, all in told} == {93}
