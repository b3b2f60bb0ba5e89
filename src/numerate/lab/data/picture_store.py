"""Pictures that are made once and kept as files, for all runs and processes that share a folder.

    pictures/
      KEY-112.rgb   red, green and blue of 112 x 112 pixels, one byte each, 37,632 in all: what the model tiny-vlm takes
      KEY.png       the picture as it is drawn: what other models take, and what a test example is shown with

The key is a hash of all that decides a picture (:class:`numerate.lab.data.Picture`), so that no file is ever out of date. A file
is written whole or not at all, and any process may write it. Every file may be deleted at any time: the picture is then drawn
again. Where files cannot be written, or little room is left, pictures are drawn whenever they are needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from numerate.lab.data import Picture
from numerate.lab.data.pictures import reduced
from numerate.lab.data.row_reader import BadData
from numerate.lab.files.progress import Progress
from numerate.lab.files.records import write_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURES = "pictures"
"""Name of the folder in that of a run or a comparison."""

_END = b"IEND\xaeB`\x82"  # of a PNG file that is whole
_SPARE = 2**30  # bytes of the disk that are left free
_FEW = 32  # pictures that are drawn before other processes would have begun
_AT_A_TIME = 8  # pictures that a process draws between two updates of the progress


class PictureStore:
    """Pictures of examples, from the files of a folder if they are there; others are drawn, and kept there.

    Args:
        folder: of the files. None: pictures are not kept.
        side: width and height of the pixels that the model takes. None: it takes pictures as they are drawn.
    """

    def __init__(self, folder: Path | None = None, side: int | None = None) -> None:
        self.folder, self.side = folder, side
        self.keeps = folder is not None

    def pixels(self, picture: Picture | Image) -> Tensor:
        """Return red, green and blue of each pixel, ``[3, side, side]``, one byte each."""
        assert self.side is not None
        path = self._path(picture, f"-{self.side}.rgb")
        if (kept := _read(path)) is not None and len(kept) == 3 * self.side**2:
            content = bytearray(kept)
        else:
            content = bytearray(reduced(self._kept_image(picture) or _made(picture), self.side))
            self._keep(path, content)
        return torch.frombuffer(content, dtype=torch.uint8).view(3, self.side, self.side)

    def image(self, picture: Picture | Image) -> Image:
        """Return the picture as it is drawn. A photo, which has a file of its own, is not kept as another one."""
        if not isinstance(picture, Picture) or picture.file is not None:
            return _made(picture)
        if (image := self._kept_image(picture)) is None and self.keeps:
            self.png(picture)
        return image or picture.image

    def png(self, picture: Picture | Image) -> bytes:
        """Return the picture as a PNG file."""
        path = self._path(picture, ".png")
        if (kept := _read(path)) is not None and kept.endswith(_END):
            return kept
        content = BytesIO()
        _made(picture).save(content, "PNG")
        self._keep(path, content.getvalue())
        return content.getvalue()

    def make_ahead(self, trained: Iterable[Picture], tested: Iterable[Picture], progress: Progress = lambda *_: None) -> None:
        """Draw pictures that are not kept yet, on all cores: those to train on as a model takes them, others as PNG too."""
        wanted = {picture.key: (picture, False) for picture in trained}
        wanted |= {picture.key: (picture, True) for picture in tested}
        todo = [(picture, png) for key, (picture, png) in wanted.items() if key is not None and not self._has(picture, png)]
        if not self.keeps or not todo:
            return
        progress("pictures", 0, len(todo), {})
        if not self._make(todo[:1]):  # here, so that processes that are forked have imported what draws
            return
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" and len(todo) > _FEW else 1
        loader: Iterable[tuple[int, bool]] = torch.utils.data.DataLoader(
            todo[1:],  # type: ignore[arg-type]
            batch_size=_AT_A_TIME,
            collate_fn=lambda batch: (len(batch), self._make(batch)),
            num_workers=cores if cores > 1 else 0,
            multiprocessing_context="fork" if cores > 1 else None,
            generator=torch.Generator(),  # the global one belongs to the training
        )
        done = 1
        for count, kept in loader if len(todo) > 1 else ():
            progress("pictures", done := done + count, len(todo), {})
            if not kept:
                return

    def _make(self, wanted: Iterable[tuple[Picture, bool]]) -> bool:
        """Draw and keep pictures; return whether they could be kept."""
        for picture, png in wanted:
            fresh = replace(picture)  # so that its image goes when it is kept
            try:
                if png or self.side is None:
                    self.png(fresh)
                if self.side is not None:
                    self.pixels(fresh)
            except BadData:  # raised again by the run that needs the picture
                continue
        return self.keeps

    def _has(self, picture: Picture, png: bool) -> bool:
        names = [".png"] if png or (self.side is None and picture.file is None) else []
        names += [] if self.side is None else [f"-{self.side}.rgb"]
        return all((path := self._path(picture, name)) is not None and path.is_file() for name in names)

    def _path(self, picture: Picture | Image, suffix: str) -> Path | None:
        if self.folder is None or not isinstance(picture, Picture) or picture.key is None:
            return None
        return self.folder / f"{picture.key}{suffix}"

    def _kept_image(self, picture: Picture | Image) -> Image | None:
        """Return the picture from its PNG file, if there is one that is whole."""
        from numerate.lab.data.drawing import Image

        if (kept := _read(self._path(picture, ".png"))) is None or not kept.endswith(_END):
            return None
        try:
            with Image.open(BytesIO(kept), formats=["PNG"]) as image:
                copied: Image.Image = image.copy()
                return copied
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            return None

    def _keep(self, path: Path | None, content: bytes | bytearray) -> None:
        if path is None or not self.keeps:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.keeps = disk_usage(path.parent).free > _SPARE
            if self.keeps:
                write_bytes(path, content, sync=False)
        except OSError:
            self.keeps = False


def _made(picture: Picture | Image) -> Image:
    return picture.image if isinstance(picture, Picture) else picture


def _read(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError:
        return None
