"""A report whose every field is an attack, in a real browser: nothing runs, nothing is asked for, nothing opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
pytest.importorskip("starlette", reason="the extra playground is not installed")

from tests.lab.report.test_report import ce, make_run, smmd

from numerate.lab.report import write_report

RUN = "window.entered=1;alert(1)"
PAYLOADS = (
    f"<script>{RUN}</script>",
    f"</script></style></svg></title></textarea><img src=x onerror='{RUN}'>",
    f"\" onmouseover=\"{RUN}\" onfocus='{RUN}' autofocus x='",
    f"<svg onload={RUN}><animate onbegin={RUN} attributeName=x></svg>",
    f"<svg><use href=\"data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' onload='{RUN}'/>#x\"/></svg>",
    f"<a href='javascript:{RUN}'>here</a> javascript:{RUN} <iframe src='javascript:{RUN}'></iframe>",
    f"<link rel=stylesheet href=http://x.example/a.css><img src=http://x.example/a.png><base href=http://x.example/> <meta http-equiv=refresh content='0;url=http://x.example'> <object data='javascript:{RUN}'>",  # noqa: E501
    f"{{{{ {RUN} }}}} {{% raw %}} ${{{RUN}}} <math><mtext><script>{RUN}</script></mtext></math>",
    "$\\href{javascript:alert(1)}{x}$ $a_b$ =cmd()",
)
CALM = "window.entered === undefined"


def every(i: int) -> str:
    """One of the payloads, so that each field has another."""
    return PAYLOADS[i % len(PAYLOADS)]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("hostile") / "runs" / "<img src=x onerror=alert(1)>"

    def change(row: dict[str, Any]) -> None:
        i = row["index"]
        row |= {"prompt": every(i), "gold": every(i + 1), "output": every(i + 2), "image": every(i + 3)}
        row["measures"][every(4)] = 1.0

    texts = {
        "name": "".join(PAYLOADS),
        "created": every(1),
        "command": "".join(PAYLOADS),
        "baseline": f"ce{every(0)}",
        "config": dict(zip(PAYLOADS, PAYLOADS[::-1], strict=True)),
        "environment": {**dict(zip(PAYLOADS, PAYLOADS, strict=True)), "device": every(2), "packages": {every(3): every(5)}},
    }
    config = {"model": every(5), "task": every(6), "task_settings": {every(7): every(0)}, "data": f"x/{every(1)}.csv"}
    config |= {"loss_settings": {every(2): every(3)}, "normalize": every(4), every(6): every(5)}
    losses = {f"ce{every(0)}": ce, **{f"{i} {text}": smmd for i, text in enumerate(PAYLOADS[1:4])}}
    make_run(run, losses, seeds=(0, 1), splits=["interpolate"], experiment=texts, change=change)
    for file in run.glob("cells/*/config.json"):  # too long for the name of a folder
        file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    return write_report(run)


def look(page: Any, address: str, entered: str = CALM) -> list[str]:
    """Open a page, touch everything on it, and return what went wrong."""
    problems: list[str] = []
    page.on("dialog", lambda dialog: (problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("popup", lambda popup: problems.append(f"popup: {popup.url}"))
    page.on(
        "request",
        lambda request: None if request.url.startswith(("data:", address)) else problems.append(f"request: {request.url}"),
    )
    page.goto(address, wait_until="load")
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    page.evaluate("document.querySelectorAll('thead button, #losses input').forEach(each => each.click())")
    page.evaluate("""document.querySelectorAll('[data-tip], [onmouseover], a, img, td, text').forEach(each => {
        for (const kind of ['mouseover', 'mousemove', 'pointerenter', 'focusin', 'mouseenter'])
            each.dispatchEvent(new MouseEvent(kind, { bubbles: true, clientX: 5, clientY: 5 }));
        if (each.matches('a') && !each.download) each.click();
    })""")
    page.wait_for_timeout(300)
    if not page.evaluate(entered):
        problems.append("a script of the data ran")
    page.emulate_media(media="print")
    return problems


def test_the_file(browser: Any, hostile: Path):
    context = browser.new_context(offline=False)
    page = context.new_page()
    assert look(page, hostile.as_uri()) == []
    assert page.locator("script").count() == 1
    assert page.locator("iframe, object, embed, base, link, form, svg script, svg animate").count() == 0
    assert page.evaluate("[...document.querySelectorAll('*')].filter(each => [...each.attributes].some(one => /^on/i.test(one.name))).length") == 0  # fmt: skip # noqa: E501
    links = page.evaluate("[...document.querySelectorAll('[href], [src]')].map(each => each.getAttribute('href') || each.getAttribute('src'))")  # fmt: skip # noqa: E501
    assert links
    assert all(link.startswith(("#", "data:text/csv;", "data:image/png;", "data:image/jpeg;")) for link in links)
    assert "<script>" in page.inner_text("body")  # it is shown, as text
    context.close()


def test_the_attacks_would_work(browser: Any, tmp_path: Path):
    """Else the tests here would show nothing."""
    (tmp_path / "bare.html").write_text(
        "<!doctype html><meta charset=utf-8>" + "".join(PAYLOADS[:6]) + "<img src=http://x.example/>", encoding="utf-8"
    )
    context = browser.new_context()
    problems = look(context.new_page(), (tmp_path / "bare.html").as_uri())
    assert {problem.partition(":")[0] for problem in problems} >= {"dialog", "a script of the data ran", "request"}
    context.close()
