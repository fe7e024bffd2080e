"""Compiled passes: the same numbers, one compilation for an architecture and none within a run."""

import pytest
import torch
from support.attacked import Tiny, perturbation, tiny, tiny_batch
from support.prerequisites import missing
from torch import nn
from torch.overrides import TorchFunctionMode

from robust_interp.attacks import AttackRunner
from robust_interp.classifiers.classifier import Classifier, with_gradient
from robust_interp.classifiers.engine import CannotCompile, Pass, compile_model
from robust_interp.classifiers.ensemble import Ensemble, MeanLoss
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.core.compiler import CompileTime, record_compile_time, recorded_compile_time, why_not

SIZE = 8
GRADIENT, QUERY = Pass(True), Pass(False)


class Backend:
    """Stands in for inductor: runs what torch.compile has captured, and counts how often that was."""

    def __init__(self, change=lambda outputs: outputs):
        self.count, self._change = 0, change

    def __call__(self, graph, inputs):
        self.count += 1
        return lambda *given: self._change(graph(*given))


def made(classifier, backend, passes=(GRADIENT,)):
    return compile_model(classifier, tiny_batch(SIZE)[0], passes, backend)[0]


def frozen(seed=0):
    return tiny(seed).requires_grad_(False)


def assert_same(one, other, images):
    for found, expected in zip(with_gradient(one, images), with_gradient(other, images), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_every_number_of_images_gives_the_same_from_one_compilation():
    backend, classifier = Backend(), frozen()
    fast = made(classifier, backend)
    assert backend.count == 1
    for n in (SIZE, 5, 4, 1, 13, 17):  # full, filled up, as it is, and several batches
        images = tiny_batch(n)[0]
        assert_same(fast, classifier, images)
        assert_same(fast, classifier, images.contiguous(memory_format=torch.channels_last))
    with torch.no_grad():
        torch.testing.assert_close(fast(tiny_batch(5)[0]), classifier(tiny_batch(5)[0]))
    assert backend.count == 1


def test_networks_of_one_architecture_share_it_and_others_have_their_own():
    backend = Backend()
    for seed in (0, 1):
        assert_same(made(frozen(seed), backend), frozen(seed), tiny_batch(SIZE)[0])
    assert backend.count == 1
    other = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(108, 5))).eval().requires_grad_(False)
    assert_same(made(other, backend), other, tiny_batch(SIZE)[0])
    assert backend.count == 2


@pytest.mark.slow
def test_attacks_compile_nothing_anew():
    """Whatever their draws, their layouts and the batches that shrink within them."""
    backend, classifier = Backend(), frozen()
    images, labels = tiny_batch(19)
    with measurement_mode(classifier):
        fast = made(classifier, backend, (GRADIENT, QUERY))
        assert backend.count == 2
        for spec in ("fgsm", "pgd(steps=3,restarts=2)", "pgd(steps=4,stop=broken)", "square(queries=3)"):
            of_both = [
                AttackRunner(perturbation(spec), one)(images, labels, range(19), SIZE)
                for one in (fast, classifier)
            ]
            torch.testing.assert_close(*(found.images for found in of_both), rtol=0, atol=1e-5)
    assert backend.count == 2


def test_modes_of_others_stay_outside():
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    backend, images = Backend(), tiny_batch(SIZE)[0]
    fast = made(frozen(), backend)
    with Mode(), torch.device("cpu"):
        fast(images.clone().requires_grad_())
    assert backend.count == 1


@pytest.mark.slow
@pytest.mark.parametrize("average", ["probabilities", "logits"])
def test_members_of_an_ensemble_share_it(average):
    backend, images = Backend(), tiny_batch(SIZE)[0]
    ensemble = Ensemble([frozen(seed) for seed in range(4)], average)
    assert_same(made(ensemble, backend), ensemble, images)
    mean = MeanLoss(ensemble.members, "mean")
    assert_same(made(mean, backend), mean, images)
    assert backend.count == 1


@pytest.mark.slow
def test_bf16_has_a_compilation_of_its_own():
    backend, classifier = Backend(), frozen()
    fast = made(classifier, backend, (Pass(True, bf16=True),))
    images = tiny_batch(SIZE)[0]
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = (one(images.clone().requires_grad_()) for one in (fast, classifier))
    assert found.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(found, expected)
    assert_same(fast, classifier, images)  # in float32, as it is
    assert backend.count == 1


class Branches(nn.Module):
    """Goes by its values, which no graph can."""

    def __init__(self):
        super().__init__()
        self.model = Tiny()

    def forward(self, images):
        return self.model(images) if images.sum().item() > 0 else self.model(-images)


def broken(graph, inputs):
    raise RuntimeError("no such instruction\nand a long story")


@pytest.mark.parametrize(
    ("model", "backend", "told"),
    [
        (torch.jit.script(Tiny().eval()), Backend(), "it is TorchScript"),
        (Branches(), Backend(), "torch.compile fails on it"),
        (Tiny(), broken, "no such instruction"),
        (Tiny(), Backend(lambda outputs: [each * 1.1 for each in outputs]), "gives other logits"),
    ],
    ids=["TorchScript", "hostile", "broken", "another function"],
)
def test_what_cannot_be_compiled_says_why_in_one_line(model, backend, told, monkeypatch):
    monkeypatch.setattr("robust_interp.classifiers.engine.why_not", lambda: "")
    classifier = Classifier(model).eval().requires_grad_(False)
    with pytest.raises(CannotCompile, match=told) as raised:
        made(classifier, backend)
    assert "\n" not in str(raised.value)


def test_a_machine_that_compiles_nothing_is_named(monkeypatch):
    monkeypatch.setattr("robust_interp.classifiers.engine.why_not", lambda: "no C++ compiler")
    with pytest.raises(CannotCompile, match=r"nothing can be compiled on this machine \(no C\+\+ compiler\)"):
        made(frozen(), broken)


def test_what_compiling_took_is_remembered_beside_what_was_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    assert recorded_compile_time("net") is None
    record_compile_time("net", CompileTime(12.345, 1.5))
    record_compile_time("other", CompileTime(1, 2))
    assert (recorded_compile_time("net"), recorded_compile_time("other")) == (
        CompileTime(12.35, 1.5),
        CompileTime(1, 2),
    )
    (path,) = (tmp_path / "cache").iterdir()
    for damaged in ("{", "[]", '{"net": 3}', '{"net": ["x", 1]}'):
        path.write_text(damaged)
        assert recorded_compile_time("net") is None
    record_compile_time("net", CompileTime(3, 4))
    assert recorded_compile_time("net") == CompileTime(3, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "lambda_in_resnet14",
        "vit_tiny_patch16_224",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("resnet18", "convnext_atto")),
    ],
)
def test_networks_of_the_zoo_and_of_timm_are_captured_whole(name):
    import timm

    size = {"img_size": 32, "patch_size": 8} if name.startswith("vit") else {}
    torch.manual_seed(0)
    models = [timm.create_model(name, num_classes=10, **size) for _ in range(2)]
    images, backend = torch.rand(4, 3, 32, 32), Backend()
    for model in models:
        classifier = Classifier(model, [0.5] * 3, [0.2] * 3).eval().requires_grad_(False)
        compile_model(classifier, images, (GRADIENT,), backend)
    assert backend.count == 1


@pytest.mark.slow
def test_compiled_code_predicts_the_same():
    if reason := why_not():
        missing(f"torch.compile does not work here: {reason}")
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)
    classifier = Classifier(nn.Sequential(*layers), [0.5], [0.2]).eval()
    images, labels = torch.rand(16, 1, 8, 8), torch.arange(16) % 10
    with measurement_mode(classifier):
        fast, _ = compile_model(classifier, images, (GRADIENT,))
        found, expected = (
            classifier(AttackRunner(perturbation("pgd(steps=5)"), one)(images, labels, range(16)).images)
            for one in (fast, classifier)
        )
    assert torch.equal(found.argmax(1), expected.argmax(1))
