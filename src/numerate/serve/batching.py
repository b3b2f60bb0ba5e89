"""Batcher: the questions of concurrent requests, asked together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


class QueueFullError(Exception):
    """Too many questions are waiting."""


class StoppingError(Exception):
    """The server is ending."""


class Batcher(Generic[In, Out]):
    """Ask a model about the questions of concurrent requests in one call.

    A question that arrives while the model is idle is asked at once. Those that arrive during a call wait, and are asked together
    in the next one.

    ``answer`` is called in a thread, ``at_once`` times at a time, with up to ``size`` questions; ``room`` is for those that wait.
    """

    def __init__(self, answer: Callable[[list[In]], Sequence[Out]], *, size: int, room: int, at_once: int = 1) -> None:
        self.answer, self.size, self.room, self.at_once = answer, size, room, at_once
        self.calls = self.asked = 0  # of the model so far, and questions in them
        self._waiting: deque[tuple[In, asyncio.Future[Out]]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="numerate-serve")
        self._stopping = False

    @property
    def waiting(self) -> int:
        """The number of questions that wait."""
        return len(self._waiting)

    async def ask(self, questions: Sequence[In]) -> list[Out]:
        """Return the answers. Questions of a cancelled call are not asked any more, unless they are being asked."""
        if self._stopping:
            raise StoppingError
        if len(self._waiting) + len(questions) > self.room:
            raise QueueFullError
        loop = asyncio.get_running_loop()
        asked = [(question, loop.create_future()) for question in questions]
        self._waiting.extend(asked)
        self._start()
        try:
            answers: list[Out] = await asyncio.gather(*(future for _, future in asked))
            return answers
        finally:
            for _, future in asked:
                future.cancel()
            if not all(future.done() and not future.cancelled() for _, future in asked):
                self._waiting = deque(one for one in self._waiting if not one[1].cancelled())

    def stop(self) -> None:
        """Refuse the questions that wait, and all that come; those that are being asked are answered."""
        self._stopping = True
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(StoppingError())

    def _start(self) -> None:
        while self._waiting and len(self._running) < self.at_once:
            batch = [self._waiting.popleft() for _ in range(min(self.size, len(self._waiting)))]
            task = asyncio.get_running_loop().create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()

    async def _run(self, batch: Sequence[tuple[In, asyncio.Future[Out]]]) -> None:
        self.calls += 1
        self.asked += len(batch)
        questions = [question for question, _ in batch]
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._threads, self.answer, questions)
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
