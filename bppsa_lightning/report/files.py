"""The two files of a report: its data as JSON, and the page that is made of it."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from bppsa_lightning.report.page import page

FORMAT = "bppsa_report/1"


def render(json_path: str | os.PathLike[str], html_path: str | os.PathLike[str]) -> Path:
    """Makes the page of a report.

    Args:
        json_path: the data, as `RunReport` wrote them.
        html_path: where the page goes; one that is there is replaced when the new one is whole.

    Returns:
        The page's path.

    Raises:
        FileNotFoundError: there are no data.
        ValueError: they are not those of a report, or of another version.
    """
    text, target = page(read(json_path)), Path(html_path)
    beside = target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
    return target


def read(json_path: str | os.PathLike[str]) -> dict[str, Any]:
    """The data of a report. Raises as `render`."""
    try:
        data = json.loads(Path(json_path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{json_path}: found no JSON ({error}), wanted a report's data") from error
    found = data.get("format") if isinstance(data, dict) else type(data).__name__
    if found != FORMAT:
        raise ValueError(f"{json_path}: found the format {found!r}, wanted {FORMAT!r}")
    return dict(data)
