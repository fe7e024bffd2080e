"""Print an audit: failed checks first, with their reasons; the passed checks share one line."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.table import Table

from robust_interp.audit.checks import CHECKS, AuditedModel, Finding
from robust_interp.cli.console import console
from robust_interp.core.percent import percent
from robust_interp.store.cells import labels
from robust_interp.store.verdicts import FAIL, OF_CHECKS, OPEN, PARTIAL, PASS, WARN

_MEANINGS = {
    FAIL: "masked gradients",
    WARN: "the attack is too weak",
    OPEN: "too few images, use a larger --n",
    PARTIAL: "nothing found, but not all checks were run",
}


def print_audit(audited: Sequence[AuditedModel], dataset: str, everything: bool = False) -> None:
    """Print the conclusion for each model, then each check that does not pass, per radius, with its numbers.

    Args:
        audited: Results of the audit, one per model.
        dataset: Name of the data set.
        everything: Whether to print passed checks in the same way; by default they share one line.
    """
    shown = console()
    for one, label in zip(audited, labels([one.card for one in audited]), strict=True):
        title = f"{label}, {dataset}: {one.conclusion}"
        shown.print(title, style="bold")
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column("verdict", no_wrap=True)
        table.add_column("why", overflow="fold")
        for verdict, why in _rows(one.findings, everything):
            table.add_row(verdict, why)
        shown.print(table)
    verdicts = {finding.verdict for one in audited for finding in one.findings}
    verdicts |= {one.conclusion.verdict for one in audited}
    shown.print(_legend(verdicts))


def _legend(verdicts: Collection[str]) -> str:
    """Explain the units and those verdicts that are shown."""
    parts = ["eps and step sizes in 1/255; values in % of the images or in percentage points"]
    parts += [f"{name}: {what}" for name, what in _MEANINGS.items() if name in verdicts]
    return "; ".join([*parts, "audit.csv has all numbers"])


def _rows(findings: Iterable[Finding], everything: bool) -> list[tuple[str, str]]:
    told = sorted(findings, key=lambda f: (-OF_CHECKS.index(f.verdict), CHECKS.index(f.check)))
    if everything:
        return [(finding.verdict, _why(finding)) for finding in told]
    rows = [(finding.verdict, _why(finding)) for finding in told if finding.verdict != PASS]
    passed = dict.fromkeys(finding.check for finding in told if finding.verdict == PASS)
    return [*rows, (PASS, ", ".join(passed))] if passed else rows


def _why(finding: Finding) -> str:
    """Format a finding: check, radius, detail, and the numbers behind it."""
    where = finding.check if finding.eps_255 is None else f"{finding.check} at {finding.eps_255:g}/255"
    numbers = []
    if finding.value is not None:
        numbers.append(f"value {finding.value:.4g}")
    if finding.ci_low is not None and finding.ci_high is not None:
        numbers.append(f"95 % {percent(finding.ci_low)} to {percent(finding.ci_high)}")
    if finding.threshold is not None:
        numbers.append(f"at most {finding.threshold:.4g}")
    if finding.n:
        numbers.append(f"n = {finding.n}")
    return f"{where}: {finding.detail}" + (f" ({', '.join(numbers)})" if numbers else "")
