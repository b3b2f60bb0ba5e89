"""Turn a matplotlib figure into an ``<svg>`` element of the page: small, in the reader's colour scheme, with values on hover."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from numerate.lab.wording.text import safe_text
from numerate.plotting.palette import variables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_ALTERNATIVE = 3000  # characters of an alternative text
MANY_POINTS = 12  # a line of more marks is not read out point by point

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_DECIMALS = re.compile(r"\d+\.\d{2,}")
_FONT = re.compile(r"font-family: [^;]*;? ?")  # the page sets it
_URL = re.compile(r"url\(#([\w.-]+)\)")
_MARK = "mark:"


def loss_key(label: str) -> str:
    """Return the value of ``data-loss`` for a loss, by which the page's script hides it."""
    return blake2b(label.encode("utf-8", "replace"), digest_size=4).hexdigest()


def mark(label: str | None, *tips: str) -> str:
    """Return the ``gid`` of an artist that belongs to a loss, with one text for hovering, or one per point of a line of marks."""
    found = {} if label is None else {"loss": loss_key(label)}
    return _MARK + json.dumps({**found, "tips": [safe_text(tip, 200) for tip in tips]}, ensure_ascii=True)


def to_svg(figure: Figure, name: str, title: str) -> str:
    """Return the figure as an ``<svg>`` element with unique ids, without style sheet and fonts.

    Its alternative text is the title and what its marks show when the pointer is on them.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ElementTree.fromstring(buffer.getvalue())
    for element in list(root.iter()):
        for child in list(element):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style") or child.tag.endswith("}RDF"):
                element.remove(child)
    said: dict[str, None] = {}
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        if element.get("id", "").startswith(_MARK):
            found = json.loads(element.attrib.pop("id").removeprefix(_MARK))
            _annotate(element, found)
            said |= dict.fromkeys(found["tips"] if len(found["tips"]) <= MANY_POINTS else ())
    values = [value for element in root.iter() for key, value in element.attrib.items() if key in (_LINK, "clip-path", "style")]
    used = dict.fromkeys(link for value in values for link in (_URL.findall(value) or [value[1:]] * value.startswith("#")))
    ids = {old: f"{name}-{number}" for number, old in enumerate(used, 1)}
    for element in root.iter():
        _clean(element, ids)
    width, height = (float(root.attrib.pop(side).removesuffix("pt")) for side in ("width", "height"))
    description = safe_text(f"{title}. {'; '.join(said)}.", MAX_ALTERNATIVE)
    root.attrib.update({"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": description})
    size = f"min-width: {width:g}px; max-width: {width:g}pt"  # text of at least 10 pixels; a narrow screen scrolls
    root.attrib.update({"style": size, "stroke-linejoin": "round"})
    return ElementTree.tostring(root, encoding="unicode")


def _annotate(element: ElementTree.Element, found: dict[str, str | list[str]]) -> None:
    """Set ``data-loss``, and add titles: one for the group, or one per mark."""
    if "loss" in found:
        element.set("data-loss", str(found["loss"]))
    tips = found["tips"]
    marks = [each for each in element.iter() if each.tag.removeprefix(_SVG) == "use"]
    for target, tip in zip(marks, tips, strict=True) if len(tips) > 1 else zip([element], tips, strict=False):
        title = ElementTree.Element("title")
        title.text = tip
        target.insert(0, title)


def _clean(element: ElementTree.Element, ids: Mapping[str, str]) -> None:
    """Rename ids, which are unique in the page then, drop white space, shorten numbers, and replace colours by variables."""
    element.tail = None
    if element.tag not in ("text", "tspan", "title"):
        element.text = None
    if (link := element.attrib.pop(_LINK, None)) is not None:
        element.set("href", f"#{ids[link[1:]]}")
    for key, value in list(element.attrib.items()):
        if key == "id":
            if value in ids:
                element.set("id", ids[value])
            else:
                del element.attrib["id"]
        elif key in ("fill", "stroke"):  # as a style, since an attribute takes no variable in every browser
            del element.attrib[key]
            element.set("style", f"{key}: {variables(value)}; {element.get('style', '')}".rstrip("; "))
        elif key in ("d", "transform", "x", "y", "points"):
            element.set(key, " ".join(_DECIMALS.sub(lambda number: f"{float(number[0]):.1f}", value).split()))
            if key == "transform" and value.startswith("rotate(-0 "):
                del element.attrib[key]
        elif key == "clip-path":
            element.set(key, _URL.sub(lambda found: f"url(#{ids[found[1]]})", value))
        elif key == "style":
            value = _URL.sub(lambda found: f"url(#{ids[found[1]]})", value)
            style = _FONT.sub("", re.sub(r"font: (?:\w+ )*([\d.]+px) [^;]*", r"font-size: \1", value))
            element.set("style", variables(style).replace(": ", ":").replace("; ", ";").rstrip("; "))
    if element.get("style") == "":
        del element.attrib["style"]
