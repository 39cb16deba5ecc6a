"""What a person is told when a rank of the run failed, died or hangs."""


class RankError(RuntimeError):
    """A rank that failed, died or hangs; the message names rank, node, process, what it did, and its log."""
