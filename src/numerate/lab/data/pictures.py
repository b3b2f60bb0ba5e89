"""Pictures of examples: drawn, or read from a file, when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

_DRAWN_WITH = ("numerate", "numpy", "pillow", "matplotlib")


@dataclass(frozen=True)
class Picture:
    """A picture that is not made yet: a function, and what it is called with."""

    draw: Callable[..., Image]  # returns the image; a function of a module
    # Arguments of ``draw``. Their ``repr`` says all that decides the image, except for a path, which stands for the file there.
    args: tuple[Any, ...]

    @cached_property
    def image(self) -> Image:
        """The image; made once and kept with this object."""
        return self.draw(*self.args)

    @property
    def file(self) -> Path | None:
        """The file that the picture is read from; None if it is drawn."""
        return next((arg for arg in self.args if isinstance(arg, Path)), None)

    @cached_property
    def key(self) -> str | None:
        """A hash of all that decides the image: the drawing code, the packages it draws with, and the arguments.

        The same on every machine and in every process. None for a file that is missing.
        """
        said: Any = self.args
        if (file := self.file) is not None:
            try:
                facts = file.stat()
            except OSError:
                return None
            said = str(file.resolve()), facts.st_size, facts.st_mtime_ns
        text = f"{self.draw.__module__}.{self.draw.__qualname__}{said!r}"
        return blake2b(text.encode(), digest_size=16, key=_drawing_code()).hexdigest()


def reduced(image: Image, side: int) -> bytes:
    """Return the red, then the green, then the blue of ``side * side`` pixels of an image."""
    return b"".join(part.tobytes() for part in image.convert("RGB").resize((side, side)).split())


@lru_cache(maxsize=1)
def _drawing_code() -> bytes:
    """Return a hash of the source code of the tasks, and of the versions of the packages that they draw with."""
    found = blake2b(digest_size=16)
    folder = Path(__file__).parent
    for file in sorted(folder.rglob("*.py")):
        found.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
    for name in _DRAWN_WITH:
        try:
            found.update(f"{name} {version(name)}\n".encode())
        except PackageNotFoundError:
            continue
    return found.digest()
