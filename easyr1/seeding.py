"""Random numbers that belong to a place in the run, so that order and parallelism never change them."""

import numpy as np


def generator(seed: int, *place: int) -> np.random.Generator:
    """A generator for one place of the run, e.g. (seed, epoch, index, attempt, answer).

    Numbers of `place` may be negative (validation uses epoch -1); equal places give equal streams,
    different places independent ones (numpy SeedSequence).
    """
    entropy = [number & 0xFFFFFFFFFFFFFFFF for number in (seed, *place)]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([len(entropy), *entropy])))
