"""The findings of audits as a table, audit.csv."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict

import pandas as pd

from robust_interp.audit.checks import AuditedModel
from robust_interp.results.columns import AUDIT
from robust_interp.results.frames import frame_of
from robust_interp.store import Store


def all_in(store: Store, refused: Iterable[AuditedModel], dataset: str) -> pd.DataFrame:
    """Return audit.csv as a table.

    Args:
        store: The store with the audits.
        refused: Models of this run that could not be measured, with their findings.
        dataset: Name of the data set of the refused models.
    """
    kept = [line for text in store.audits() for line in json.loads(text)]
    kept.sort(key=lambda line: (line["dataset"], line["model"], line["recipe"], line["train_seed"] or 0))
    new = [line for one in refused for line in lines(one, dataset)]
    return frame_of([*kept, *new], AUDIT).round(6)


def lines(one: AuditedModel, dataset: str) -> Iterator[dict]:
    """Yield the rows of audit.csv for one audited model, one per finding.

    Args:
        one: The audited model.
        dataset: Name of the data set.
    """
    of_card = ("model", "weights_sha256", "recipe", "lambda_init", "train_seed", "members")
    card = {name: getattr(one.card, name) for name in of_card}
    for finding in one.findings:
        yield asdict(finding) | card | {"dataset": dataset}
