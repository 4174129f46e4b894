"""How often and how many: failed log-ins of an address, streams and uploads of a person."""

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException


class Buckets:
    """How often each address may fail to prove who it is: `most` times, and again one per `seconds`."""

    def __init__(self, most: int = 20, seconds: float = 6.0):
        self.most, self.seconds = most, seconds
        self.levels: dict[str, tuple[float, float]] = {}

    def wait(self, address: str) -> int:
        """Return the seconds until the address may try again; 0 if it may now."""
        return max(0, math.ceil((self._level(address) - self.most + 1) * self.seconds))

    def failed(self, address: str) -> None:
        """Count a failure."""
        if len(self.levels) > 10_000:
            self.levels = {each: level for each, level in self.levels.items() if self._level(each)}
        self.levels[address] = (self._level(address) + 1, time.monotonic())

    def _level(self, address: str) -> float:
        level, since = self.levels.get(address, (0.0, 0.0))
        return max(0.0, level - (time.monotonic() - since) / self.seconds)


class Held:
    """How many things of one kind somebody holds at the same time, for example open streams."""

    def __init__(self, most: int, sentence: str):
        self.most, self.sentence = most, sentence
        self.count: Counter = Counter()

    @contextmanager
    def one(self, key: object) -> Iterator[None]:
        """Hold one more, or answer 429 if there are too many."""
        if self.count[key] >= self.most:
            raise HTTPException(429, self.sentence, {"Retry-After": "10"})
        self.count[key] += 1
        try:
            yield
        finally:
            self.count[key] -= 1
            self.count += Counter()  # drops the zeros
