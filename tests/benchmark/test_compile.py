"""`compile=`: what ran, that it changes no key, who falls back, and when it pays."""

import numpy as np
import pytest
import torch
from support.attacked import Tiny, predict, tiny, tiny_batch

from robust_interp import attacks, data, evaluate
from robust_interp.benchmark import compiling, cost
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.request import Request
from robust_interp.classifiers.engine import Pass
from robust_interp.core.compiler import CompileTime
from robust_interp.core.errors import UserError
from robust_interp.store import Outcome, Store
from robust_interp.store.cells import CLEAN

# The networks here are untrained, which evaluate remarks on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

N, BATCH = 19, 8


class Backend:
    """Stands in for inductor: runs what torch.compile has captured, and counts how often that was."""

    def __init__(self):
        self.count = 0

    def __call__(self, graph, inputs):
        self.count += 1
        return graph


def planned(compile="on", models=None, **options):
    images, _ = tiny_batch(N)
    labels = predict(tiny(), images)
    labels[::5] = 4
    models = models or {"one": tiny(0).model, "two": tiny(1).model}
    usual = {"attacks": "fgsm,pgd(steps=2,restarts=2)", "corruptions": "none", "eps": (4 / 255,)}
    dataset = data.from_arrays(images, labels, 5)
    benchmark = Benchmark(
        Request(modules=models, dataset=dataset, batch_size=BATCH, compile=compile, **usual | options)
    )
    benchmark.runner.backend = Backend()
    return benchmark


def table(benchmark, folder=None):
    with Store(folder) as store:
        return benchmark.run(store)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["final", "worst"])
def test_the_rows_are_the_same_and_say_what_ran(protocol):
    benchmark = planned(protocol=protocol)
    found, before = table(benchmark).results, table(planned("off", protocol=protocol)).results
    assert benchmark.runner.backend.count == 1  # for two models, all attacks, and batches that shrink
    engines = found.dropna(subset="engine").groupby("perturbation")["engine"].agg(set).to_dict()
    own = ["fgsm", "pgd"] if protocol == "final" else ["fgsm"]
    assert engines == {name: {"compiled"} for name in own}
    assert set(found["device"].dropna()) == {"cpu"}
    assert found.drop(columns=["seconds", "engine"]).equals(before.drop(columns="seconds"))


@pytest.mark.slow
def test_it_is_no_part_of_the_key(tmp_path):
    table(planned("off"), tmp_path)
    again = planned("on")
    with Store(tmp_path) as store:
        assert again.work(store) == []
        assert "engine" not in again.run(store).results
    assert again.runner.backend.count == 0


@pytest.mark.slow
def test_what_cannot_be_compiled_is_measured_with_one_note():
    script = torch.jit.script(Tiny().eval())
    report = table(planned(models={"script": script, "other": torch.jit.script(Tiny().eval())}))
    (note,) = [line for line in report.warnings if "compiled" in line]
    assert note == "script, other: not compiled, so attacks are slower: it is TorchScript"
    assert "engine" not in report.results


@pytest.mark.parametrize("value", ["always", True, None])
def test_what_it_may_be_is_said(value):
    with pytest.raises(UserError, match="compile must be one of auto, on, off, not"):
        evaluate(tiny().model, (*tiny_batch(4), 5), compile=value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "gain", "pays"),
    [(161, 2.0, True), (162, 2.0, False), (1, 1.0, False), (1, 0.9, False)],
)
def test_auto_compiles_where_the_estimate_says_that_it_pays(monkeypatch, seconds, gain, pays):
    """A pass takes a second: FGSM 3 + 1 and PGD with two restarts 12 + 1, on 19 images; a half is saved."""
    monkeypatch.setattr(cost, "seconds_per_pass", lambda *_: 1.0)
    monkeypatch.setattr(cost, "LEAST_WORK", 0)
    monkeypatch.setattr(compiling, "recorded_compile_time", lambda key: CompileTime(seconds, gain))
    attacked = 19 * (4 + 13)
    with Store(None) as store:
        found = {
            asked: planned(asked, {"net": Tiny()}).estimate(store).seconds for asked in ("auto", "on", "off")
        }
        benchmark = planned("auto", {"net": Tiny()})
        worth = cost.worth_compiling(benchmark.plan, benchmark.targets, benchmark.runner, store)
        # Two processes have half of the work each, and both would have to compile.
        assert not cost.worth_compiling(benchmark.plan, benchmark.targets, benchmark.runner, store, 2)
    assert bool(worth) == pays
    assert found["off"] == 19 + attacked
    assert found["on"] == pytest.approx(19 + seconds + attacked / gain)
    assert found["auto"] == (found["on"] if pays else found["off"])


@pytest.mark.slow
def test_auto_leaves_small_work_and_other_devices_alone(monkeypatch):
    def timed(*_):
        raise AssertionError("a pass was timed for nothing")

    monkeypatch.setattr(cost, "seconds_per_pass", timed)
    benchmark = planned("auto")
    found = table(benchmark)
    assert "engine" not in found.results
    assert benchmark.runner.backend.count == 0


def test_what_is_compiled_of_an_attack():
    def passes(spec, precision="float32"):
        return compiling.passes_of(*attacks.parse_attacks(spec, [0.1], {}, 0, precision))

    assert passes("pgd") == {Pass(True)}
    assert passes("square") == {Pass(False)}
    assert passes("deepfool") == set()
    assert passes("square(norm=L2, eps=0.5)") == passes("apgd_t(norm=L2, eps=0.5)") == set()
    assert passes("apgd_t") == passes("apgd_ce(norm=L2, eps=0.5)") == {Pass(True)}
    assert passes("autoattack") == {Pass(True), Pass(False)}
    assert passes("autoattack(norm=L2, eps=0.5)") == {Pass(True)}  # its Square takes one image at a time
    assert passes("pgd", "bf16") == {Pass(True, bf16=True)}
    assert compiling.passes_of(CLEAN) == set()


@pytest.mark.parametrize(
    ("stored", "places", "engine"),
    [
        ("cpu", "cpu", ""),
        ("cuda:1 compiled", "cuda:1", "compiled"),
        ("cpu+cpu compiled", "cpu", "compiled+eager"),
        ("cpu+cuda:0", "cpu+cuda:0", ""),
    ],
)
def test_what_the_store_says_of_the_engine(stored, places, engine):
    found = Outcome(np.zeros(1, np.int16), np.zeros(1, np.uint8), None, 0.0, stored)
    assert (found.places, found.engine) == (places, engine)


class Brightness(torch.nn.Module):
    """Whether an image is brighter than 0.5; notes how many it is given where a gradient is asked for."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, images):
        if images.requires_grad:
            self.seen.append(len(images))
        brighter = images.mean((1, 2, 3)) - 0.5
        return torch.stack([-brighter, brighter], dim=1)


def test_worst_puts_what_stands_together_to_full_batches():
    """Four of 40 images have a wrong label; a change of 0.1 moves to the other side what is so near."""
    brightness = (torch.arange(40) + 0.5) / 40
    images, labels = brightness.view(-1, 1, 1, 1).expand(-1, 1, 2, 2), (brightness > 0.5).long()
    labels[::10] = 1 - labels[::10]
    far = (brightness - 0.5).abs() > 0.1
    model, standing = Brightness(), int(far.sum() - far[::10].sum())
    assert standing == 32 - 3
    options = {"attacks": "fgsm,pgd(steps=1)", "eps": 0.1, "corruptions": "none", "protocol": "worst"}
    found = evaluate(model, (images.numpy(), labels.numpy(), 2), batch_size=16, **options)
    assert found["accuracy"].tolist() == [90.0, 100 * standing / 40, 100 * standing / 40]
    assert model.seen[-5:] == [16, 16, 4, 16, 13]
