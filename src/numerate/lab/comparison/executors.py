"""Run the cells of an experiment: in processes on this machine, one at a time or stacked, or on a Ray cluster."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, as_completed, wait
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from pathlib import Path
from traceback import clear_frames
from typing import Any

import torch

from numerate.lab.comparison.cells import cell_folder, draw_pictures, is_finished, run_cells, train_cells
from numerate.lab.files.progress import NotedProgress, Progress
from numerate.lab.files.records import RESULT, write_bytes
from numerate.lab.models.names import BUILT
from numerate.lab.training.config import RunConfig
from numerate.lab.training.run import run
from numerate.lab.training.stacked import most_stacked, stackable, stacks

OnDone = Callable[[RunConfig, Exception | None], object]
IsOver = Callable[[], bool] | None
Job = Sequence[RunConfig]


class OutOfTime(BaseException):
    """Raised within a run that is abandoned: not a failure, and not for the run to handle."""


_POLL_SECONDS = 0.5  # between checks of the time limit


def threads_for(config: RunConfig, processes: int) -> int:
    """Return 1 for models that are built here, so that results do not depend on the number of cores; else a share of them."""
    return 1 if config.model in BUILT else max(1, (os.cpu_count() or 1) // processes)


def run_local(
    cells: Sequence[RunConfig],
    folder: Path,
    *,
    processes: int = 1,
    stacked: bool = False,
    pool: ProcessPoolExecutor | None = None,
    is_over: IsOver = None,
    on_done: OnDone,
    progress: Progress = lambda *_: None,
) -> None:
    """Run the cells that are not finished, ``processes`` at a time, after the pictures that they need are drawn.

    With ``stacked``, cells of small models are trained and evaluated as one (:mod:`numerate.lab.training.stacked`): a stack for
    each process or, on a GPU, stacks that are trained one after the other while the processes evaluate.

    A failed cell is reported via ``on_done`` and the others continue, except after an OSError (such as a full disk), which
    would stop them too.

    ``pool`` has the processes, if several calls share them (:func:`worker_pool`). Once ``is_over``, which is asked again and
    again, cells that are not finished are given up and not reported; a stack then holds the cells of one seed.
    """
    left = [cell for cell in cells if not is_finished(folder, cell)]
    draw_pictures(left, folder, progress)
    todo = _jobs(left, processes, stacked=stacked, by_seed=is_over is not None)
    if stacked and processes > 1 and torch.cuda.is_available():
        _run_apart([job for job in todo if stackable(job[0])], folder, processes, on_done, progress)
        todo = [job for job in todo if not stackable(job[0])]
    if processes == 1 or len(todo) <= 1:
        _run_here(todo, folder, is_over, on_done, progress)
    elif pool is not None:
        _run_in(pool, todo, folder, processes, is_over, on_done)
    else:
        with worker_pool([job[0] for job in todo], processes) as own:
            _run_in(own, todo, folder, processes, is_over, on_done)


def _run_here(todo: Sequence[Job], folder: Path, is_over: IsOver, on_done: OnDone, progress: Progress) -> None:
    """Run jobs in this process, one after the other."""

    def watched(*event: Any) -> None:
        progress(*event)
        if is_over is not None and is_over():
            raise OutOfTime

    for job in todo:
        if is_over is not None and is_over():
            return
        torch.set_num_threads(threads_for(job[0], 1))
        failure: Exception | None = None
        try:
            with NotedProgress([cell_folder(folder, cell) for cell in job], watched) as noted:
                run_cells(job, folder, progress=noted)
        except OutOfTime:
            return
        except Exception as error:  # reported via on_done; other cells continue
            failure = error
            _free(error)
        _report(job, folder, failure, on_done)
        if isinstance(failure, OSError):
            return


def _run_in(
    pool: ProcessPoolExecutor,
    todo: Sequence[Job],
    folder: Path,
    processes: int,
    is_over: IsOver,
    on_done: OnDone,
    *,
    again: bool = True,
) -> None:
    """Run jobs in the processes of a pool; each begins when a process is free.

    If a process is killed, such as for lack of memory, the pool ends. With ``again``, the jobs that were running then are run
    once more, each alone, and the others in a new pool.
    """
    stopped = False
    suspects, left = list[Job](), list[Job]()
    # Cells that another process holds are retried last, and waited for.
    for patient in (False, True):
        queue, todo = deque(todo), []
        running: dict[Future[Any], Job] = {}
        while queue or running:
            while queue and len(running) < processes:
                job = queue.popleft()
                try:
                    running[submit(pool, _in_worker, job, folder, processes, patient)] = job
                except BrokenExecutor:  # a process was killed
                    left.append(job)
            done, _ = wait(running, timeout=None if is_over is None else _POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                job, raised = running.pop(future), future.exception()
                held = [] if raised is not None else future.result()
                todo += [held] if held else []
                if isinstance(raised, BrokenExecutor) and again:
                    suspects.append(job)
                    continue
                _report([cell for cell in job if cell not in held], folder, _failure(future), on_done)
                if isinstance(raised, OSError):
                    queue.clear()
                    stopped = True
            if is_over is not None and (queue or running) and is_over():
                _end_workers(pool)
                return
        if stopped:
            return
    for job in suspects:
        with worker_pool([job[0]], 1) as alone:
            _run_in(alone, [job], folder, processes, is_over, on_done, again=False)
    if left:
        with worker_pool([job[0] for job in left], processes) as fresh:
            _run_in(fresh, left, folder, processes, is_over, on_done)


@contextmanager
def worker_pool(cells: Sequence[RunConfig], processes: int, *, gpu: bool = True) -> Iterator[ProcessPoolExecutor]:
    """Return processes that start when they are needed. They end with the body, at once if it raises (Ctrl-C)."""
    _check_script()
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin_worker, initargs=(gpu,))
    with _library_threads(cells, processes):
        try:
            yield pool
        except BaseException:
            _end_workers(pool)
            raise
        pool.shutdown()


def _check_script() -> None:
    """Raise if new processes, which import the script that starts them, would run it from its first line to its last."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is not None and file.endswith(".py") and "__name__" not in Path(file).read_text(encoding="utf-8", errors="replace"):
        raise RuntimeError(
            f"{file} starts runs in other processes, and each of them would run the script again: expected the call below "
            '`if __name__ == "__main__":`, or processes=1.'
        )


def _end_workers(pool: ProcessPoolExecutor) -> None:
    """End the processes of a pool at once, with what they run."""
    for process in list((pool._processes or {}).values()):
        process.terminate()
    pool.shutdown(cancel_futures=True)


def submit(pool: ProcessPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Submit a job. Processes that start for it do not get the Ctrl-C of a terminal: their parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(function, *arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_apart(jobs: Sequence[Sequence[RunConfig]], folder: Path, processes: int, on_done: OnDone, progress: Progress) -> None:
    """Train stacks one after the other on the GPU, while ``processes`` others evaluate those that are trained, on the CPU.

    Several processes that train on one GPU would take turns. Evaluation searches and scores one example after the other, which
    takes a core and hardly a GPU.
    """
    if not jobs:
        return
    running: dict[Future[Any], RunConfig] = {}
    with worker_pool([job[0] for job in jobs], processes, gpu=False) as pool:
        for _ in range(min(processes, sum(map(len, jobs)))):
            submit(pool, _import_models)  # while the first stack trains
        for job in jobs:
            try:
                with NotedProgress([cell_folder(folder, cell) for cell in job], progress) as noted:
                    train_cells(job, folder, progress=noted)
            except Exception as error:  # reported via on_done; other cells continue
                _free(error)
                _report(job, folder, error, on_done)
                if isinstance(error, OSError):
                    break
                continue
            running |= {submit(pool, _in_worker, [cell], folder, processes, True): cell for cell in job}
            for future in [future for future in running if future.done()]:
                _report([running.pop(future)], folder, _failure(future), on_done)
        for future in as_completed(running):
            _report([running[future]], folder, _failure(future), on_done)


def _free(error: BaseException | None) -> None:
    """Free what the frames of an error hold: the model of a run that failed, for instance for lack of memory."""
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    torch.cuda.empty_cache()


def _failure(future: Future[Any]) -> Exception | None:
    raised = future.exception()
    if isinstance(raised, BrokenExecutor):
        return RuntimeError("its process was killed: often because memory ran out. Expected --processes 1, or smaller runs.")
    return raised if isinstance(raised, Exception | None) else RuntimeError(repr(raised))


def _jobs(cells: Sequence[RunConfig], processes: int, *, stacked: bool, by_seed: bool = False) -> list[list[RunConfig]]:
    """Return what is run as one: single cells, or stacks of about equal size that all processes can share, the largest first.

    ``by_seed`` stacks the cells of one seed, in their order, so that a seed can be left out; a GPU trains all of them as one.
    """
    if not stacked:
        return [[cell] for cell in cells]
    if by_seed and not torch.cuda.is_available():
        seeds = [[cell for cell in cells if cell.seed == seed] for seed in dict.fromkeys(cell.seed for cell in cells)]
        return [job for mine in seeds for job in _jobs(mine, 1, stacked=True)]
    together = [cell for cell in cells if stackable(cell)]
    models = sum(cell.members for cell in together)
    share = models if torch.cuda.is_available() else -(-models // processes)
    size = max(1, min(most_stacked(), share))
    jobs = [*stacks(together, size), *([cell] for cell in cells if not stackable(cell))]
    return sorted(jobs, key=len, reverse=True)


def _report(job: Sequence[RunConfig], folder: Path, failure: Exception | None, on_done: OnDone) -> None:
    """Report the cells of a job; part of a stack may be finished although it failed."""
    for cell in job:
        on_done(cell, None if is_finished(folder, cell) else failure)


@contextmanager
def _library_threads(cells: Sequence[RunConfig], processes: int) -> Iterator[None]:
    """Limit the threads of processes that start in the body; by default each process would use every core."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(max(threads_for(cell, processes) for cell in cells))
    try:
        yield
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def _begin_worker(gpu: bool) -> None:
    """End this worker when its parent is killed. Otherwise it would finish the queue and then wait forever."""
    if not gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""

    def wait_for_parent() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()


def _import_models() -> None:
    """Import what loading a model imports: several seconds."""
    import transformers.models.llama.modeling_llama  # noqa: F401


def _in_worker(job: Job, folder: Path, processes: int, patient: bool) -> list[RunConfig]:
    torch.set_num_threads(threads_for(job[0], processes))
    with NotedProgress([cell_folder(folder, cell) for cell in job]) as noted:
        return run_cells(job, folder, wait=patient, progress=noted)


def run_ray(cells: Sequence[RunConfig], folder: Path, *, address: str | None = None, on_done: OnDone) -> None:
    """Run the cells that are not finished on a Ray cluster. No shared disk is needed: files are sent back to this process.

    Each cell gets a CPU, and a GPU if the cluster has any.

    Without an ``address``, the cluster is one that runs here, or a new one on this machine.
    """
    try:
        import ray
    except ImportError:
        raise ModuleNotFoundError("executor='ray' needs the package ray: run pip install 'numerate[ray]'.") from None
    began = not ray.is_initialized()
    if began:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports
        ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
    try:
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=3)(_on_cluster)
        running = {remote.remote(cell.model_dump(mode="json")): cell for cell in cells if not is_finished(folder, cell)}
        while running:
            (ready,), _ = ray.wait(list(running))
            cell = running.pop(ready)
            try:
                _store(cell_folder(folder, cell), ray.get(ready))
            except Exception as error:  # reported via on_done; other cells continue
                on_done(cell, error)
            else:
                on_done(cell, None)
    finally:
        if began:
            ray.shutdown()


def _on_cluster(values: dict[str, Any]) -> dict[str, bytes]:
    """Run a cell in a temporary folder and return its files."""
    cell = RunConfig(**values)
    torch.set_num_threads(threads_for(cell, 1))
    with tempfile.TemporaryDirectory() as folder:
        run(cell, Path(folder))
        return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def _store(folder: Path, files: dict[str, bytes]) -> None:
    """Write the files of a cell, the result last: a cell that has one is complete."""
    for name in sorted(files, key=lambda name: name == RESULT):
        write_bytes(folder / name, files[name])
