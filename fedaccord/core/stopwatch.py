"""Measuring how long the parts of a round take."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Stopwatch:
    """The seconds spent in each part; time in a part inside another is not counted in the outer one."""

    parts: dict[str, float] = field(default_factory=dict)
    _inner: float = 0.0

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin, outer, self._inner = time.perf_counter(), self._inner, 0.0
        yield
        spent = time.perf_counter() - begin
        self.parts[part] = self.parts.get(part, 0.0) + spent - self._inner
        self._inner = outer + spent

    def each(self, part: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, and count the time that it takes to produce each."""
        iterator = iter(items)
        while True:
            with self(part):
                item = next(iterator, None)
            if item is None:
                return
            yield item

    def seconds(self) -> dict[str, float]:
        return {part: round(spent, 6) for part, spent in self.parts.items()}
