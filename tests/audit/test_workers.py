"""An audit whose cells were measured by an executor finds what one process finds."""

import numpy as np
import pytest
from support.executors import Several
from support.one_pixel import IMAGES, LABELS, Net

from robust_interp.audit.options import Options
from robust_interp.audit.run import Audit
from robust_interp.benchmark.measure import LocalWorker
from robust_interp.benchmark.request import Request
from robust_interp.data import from_arrays
from robust_interp.store import Store


@pytest.mark.slow
def test_an_executor_measures_what_is_judged_here():
    modules = {"a": Net(), "b": Net()}
    modules["b"].scale.data += 1
    request = Request(modules=modules, dataset=from_arrays(IMAGES, LABELS), eps=(0.1,), batch_size=3)
    audit = Audit(request, Options(strongest="none", black_box="none"))
    with Store(None) as one, Store(None) as two:
        alone = audit.run(one)
        with LocalWorker(audit.runner, {target.key: target for target in audit.targets}) as worker:
            executor = Several(worker, seed=0)
            measured = audit.run(two, executor=executor)
            done = len(executor.done)
    assert done > 0
    assert any(task.source for task in executor.done)  # attacks that are transferred, too
    for found, expected in zip(measured, alone, strict=True):
        assert [finding.verdict for finding in found.findings] == [
            finding.verdict for finding in expected.findings
        ]
        assert np.array_equal(
            [finding.value or 0 for finding in found.findings],
            [finding.value or 0 for finding in expected.findings],
        )
