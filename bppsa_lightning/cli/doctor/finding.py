"""One finding: fine, worth knowing, or a problem with its remedy."""

from dataclasses import asdict, dataclass
from typing import Any

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True)
class Finding:
    """What is said of one thing.

    Attributes:
        area: "versions", "library", "cuda", "threads", "load" or "calibration".
        what: one line.
        level: `OK`; `NOTE` for what may be meant so; `PROBLEM` for what is wrong or slow.
        remedy: what to do; every problem has one.
    """

    area: str
    what: str
    level: str = OK
    remedy: str | None = None

    def __post_init__(self) -> None:
        if self.level == PROBLEM and not self.remedy:
            raise ValueError(f"remedy: found none for the problem {self.what!r}")

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def as_text(findings: list[Finding]) -> str:
    """For people: by area, in the order given, remedies below."""
    lines, area = [], None
    for finding in findings:
        if finding.area != area:
            area = finding.area
            lines.append(area)
        lines.append(f"  {finding.level:8} {finding.what}")
        if finding.remedy:
            lines.append(f"           -> {finding.remedy}")
    problems = sum(finding.level == PROBLEM for finding in findings)
    notes = sum(finding.level == NOTE for finding in findings)
    counts = f"{_counted(problems, 'problem')}, {_counted(notes, 'note')}"
    return "\n".join([*lines, f"{'All is well' if not problems else 'Not well'}: {counts}."])


def _counted(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'s' * (count != 1)}"
