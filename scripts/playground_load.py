"""Does the playground survive load, and does its memory stay the same?

    python scripts/playground_load.py                 # ten minutes
    python scripts/playground_load.py --minutes 1 --workers 8

The server is a process of its own; this process asks it over loopback for everything that it answers, and for much that it must
refuse: every tab with changing states, files of the page, bodies that are endless, slow, broken or cut off, other hosts and
origins, paths that lead out. Each request has the status that is
right for it; any other is an error. A line per minute gives requests, errors, latency and memory. The exit code is 1 if there
was an error, if memory grew, or if the first views of the tabs are not the same at the end.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from urllib.parse import urlsplit

JSON = {"content-type": "application/json"}
FILES = ("/", "/api", "/palette.css", "/page/shell.js", "/page/style.css", "/page/icon.svg")
OUTSIDE = ("/page/../server.py", "/page/%2e%2e/server.py", "/page/..%2f..%2fetc", "/page/%00", "/report/..")
GROWTH, SLACK = 1.05, 16.0
"""Memory has grown if it ends above this many times what it was after the first fifth, and above that by so many MiB."""

Answer = tuple[int, bytes]


@dataclass
class Asker:
    """A connection to the playground; opened again when it was closed."""

    address: str
    random: random.Random
    tabs: dict[str, dict[str, object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=120)

    def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a request; return status and body of the answer."""
        try:
            self.connection.request(method, path, body, dict(headers or {}))  # type: ignore[arg-type]
            answer = self.connection.getresponse()
            return answer.status, answer.read()
        except (http.client.HTTPException, OSError):
            self.connection.close()
            raise

    def tab(self) -> Answer:
        """Ask for a tab's first view, or for one of 100 others."""
        name = self.random.choice([*self.tabs])
        state = dict(self.tabs[name])
        if "target" in state and isinstance(state["target"], int):
            state["target"] = self.random.randrange(10)
        return self.ask("POST", f"/api/{name}", json.dumps(state), JSON)

    def bad_state(self) -> Answer:
        """Send JSON that is no state."""
        body = self.random.choice([b"{", b"[]", b"", b'{"nothing": 1}', b'{"a":' * 3000, b"\xff", b'{"target": 1e400}'])
        return self.ask("POST", f"/api/{self.random.choice([*self.tabs])}", body, JSON)

    def endless(self) -> Answer:
        """Send more than is allowed, without giving a length; the server may hang up before all is sent."""

        def parts() -> Iterator[bytes]:
            for _ in range(40):
                yield b" " * (1 << 20)

        try:
            return self.ask("POST", "/api/digit", parts(), JSON)
        except (BrokenPipeError, ConnectionResetError):
            return 413, b""

    def cut_off(self) -> Answer:
        """Hang up in the middle of a body, then ask for the page."""
        self.connection.putrequest("POST", "/api/digit")
        self.connection.putheader("content-type", JSON["content-type"])
        self.connection.putheader("content-length", "100000")
        self.connection.endheaders(b"{" * self.random.randrange(1, 70_000))
        self.connection.close()
        return self.ask("GET", "/")

    def slow(self) -> Answer:
        """Send a body in pieces, with pauses."""

        def parts() -> Iterator[bytes]:
            for _ in range(5):
                time.sleep(0.1)
                yield b"{"

        return self.ask("POST", "/api/digit", parts(), JSON)

    def crowd(self) -> Answer:
        """Open many connections that say little, then ask for the page while they are open."""
        with ExitStack() as opened:
            for _ in range(40):
                one = opened.enter_context(socket.create_connection((self.connection.host, self.connection.port), 30))
                one.sendall(self.random.choice([b"", b"GET / HTTP/1.1\r\nhost: x", b"\x16\x03\x01\x00", b"GET /\r\n\r\n"]))
            return self.ask("GET", "/")

    def other_host(self) -> Answer:
        """Ask as a page does whose name was rebound to this address."""
        host = self.random.choice(["evil.example", "127.0.0.1.evil.example:80", "8.8.8.8", "0.0.0.0", ""])
        return self.ask("GET", "/", headers={"host": host})

    def other_origin(self) -> Answer:
        """Send something from a page elsewhere."""
        origin = {"origin": self.random.choice(["http://evil.example", "null", "http://127.0.0.1:1"])}
        return self.ask("POST", "/api/digit", b"{}", {**JSON, **origin})


KINDS: dict[str, tuple[int, Callable[[Asker], Answer], set[int]]] = {
    "tab": (60, Asker.tab, {200}),
    "file of the page": (60, lambda asker: asker.ask("GET", asker.random.choice(FILES)), {200}),
    "bad state": (20, Asker.bad_state, {400}),
    "endless": (2, Asker.endless, {413}),
    "cut off": (10, Asker.cut_off, {200}),
    "slow": (4, Asker.slow, {400}),
    "crowd": (1, Asker.crowd, {200}),
    "other host": (10, Asker.other_host, {400}),
    "other origin": (10, Asker.other_origin, {403}),
    "path outside": (10, lambda asker: asker.ask("GET", asker.random.choice(OUTSIDE)), {404}),
    "other method": (4, lambda asker: asker.ask(asker.random.choice(["PUT", "DELETE", "TRACE"]), "/api/digit"), {405}),
}
"""What is asked for: how often, how, and the status of the right answer."""


@dataclass
class Load:
    """What happened: seconds per request, errors, and MiB of the server over time."""

    times: list[float] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def growth(self) -> tuple[float, float]:
        """The median MiB in the second fifth of the time, and in the last."""
        fifth = max(1, len(self.memory) // 5)
        return statistics.median(self.memory[fifth : 2 * fifth] or self.memory), statistics.median(self.memory[-fifth:])

    @property
    def grew(self) -> bool:
        """Whether memory ends well above where it began."""
        early, late = self.growth
        return late > max(GROWTH * early, early + SLACK)

    def line(self, begin: int) -> str:
        """Return the figures of the requests from ``begin`` on."""
        times = sorted(self.times[begin:]) or [0.0]
        shown = " / ".join(f"{1000 * times[min(len(times) - 1, int(q * len(times)))]:.0f}" for q in (0.5, 0.95, 0.99, 1.0))
        return f"{len(self.times) - begin:8,} requests {len(self.errors):4} errors {shown:>24} ms {self.memory[-1]:8.1f} MiB"


@contextmanager
def playground(runs: Path) -> Iterator[tuple[str, int]]:
    """Start a playground in a process of its own; yield its address and its process id."""
    command = [sys.executable, "-m", "numerate", "playground", "--no-browser", "--port", "0", "--runs", str(runs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[2], process.pid
        finally:
            process.terminate()


def memory_mib(process: int) -> float:
    """Return the resident memory of a process, in MiB."""
    text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")) / 1024


def work(asker: Asker, load: Load, until: float) -> None:
    """Ask until the time is up."""
    names, weights = [*KINDS], [weight for weight, _, _ in KINDS.values()]
    while time.monotonic() < until:
        (name,) = asker.random.choices(names, weights)
        began = time.monotonic()
        try:
            status, body = KINDS[name][1](asker)
            problem = "" if status in KINDS[name][2] else f"{name}: {status} {body[:200]!r}"
        except Exception as error:  # whatever it is: it is counted, and the load goes on
            problem = f"{name}: {type(error).__name__} {error}"
        with load.lock:
            load.times.append(time.monotonic() - began)
            load.kinds[name] += 1
            load.errors += [problem] if problem else []


def drive(
    seconds: float,
    workers: int = 4,
    seed: int = 0,
    say: Callable[[str], object] = lambda text: None,
) -> Load:
    """Load a playground with requests for so many seconds; return what happened."""
    load = Load()
    with TemporaryDirectory() as folder, ExitStack() as closed, playground(Path(folder)) as (address, process):
        first = Asker(address, random.Random(seed))
        closed.callback(first.connection.close)
        tabs = json.loads(first.ask("GET", "/api")[1])
        views = {name: first.ask("POST", f"/api/{name}", json.dumps(state), JSON) for name, state in tabs.items()}
        until = time.monotonic() + seconds
        askers = [Asker(address, random.Random(seed + 1 + number), tabs) for number in range(workers)]
        for asker in askers:
            closed.callback(asker.connection.close)
        threads = [Thread(target=work, args=(asker, load, until)) for asker in askers]
        for thread in threads:
            thread.start()
        begin, told = 0, time.monotonic() + 60
        while any(thread.is_alive() for thread in threads):
            load.memory.append(memory_mib(process))
            if time.monotonic() >= told:
                say(load.line(begin))
                begin, told = len(load.times), told + 60
            time.sleep(min(1.0, seconds / 25))
        if begin:  # the last minute, or what there is of it
            say(load.line(begin))
        for name, state in tabs.items():
            if (first.ask("POST", f"/api/{name}", json.dumps(state), JSON)) != views[name]:
                load.errors.append(f"{name}: another first view than before the load")
    return load


def main() -> None:
    """Load, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=4, help="requests at a time")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("per minute: requests, errors so far, latency (median / 95 % / 99 % / most), memory of the server", flush=True)
    load = drive(60 * options.minutes, options.workers, options.seed, say=lambda text: print(text, flush=True))
    early, late = load.growth
    print(f"all:\n{load.line(0)}\n{dict(load.kinds)}")
    print(f"memory: {early:.1f} MiB in the second fifth of the time, {late:.1f} MiB in the last")
    for problem, times in Counter(load.errors).most_common(20):
        print(f"error, {times} times: {problem}")
    if load.grew:
        print("memory grew")
    sys.exit(1 if load.errors or load.grew else 0)


if __name__ == "__main__":
    main()
