"""The step as a CUDA graph: its logic on the CPU, with a tape in the graph's place; and the real thing."""

import contextlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from robust_interp import data, models, zoo
from robust_interp.training import cuda_graph, side_by_side
from robust_interp.training.cuda_graph import RecordedSteps
from robust_interp.training.loader import Loader
from robust_interp.training.recipe import Recipe
from robust_interp.training.side_by_side import TrainerGroup
from robust_interp.training.trainer import Trainer

DIGITS = data.DATASETS["digits"]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA")),
]
aten = torch.ops.aten
# what waits for the device, or copies from the host: no CUDA graph can hold it
FORBIDDEN = {aten._local_scalar_dense, aten.nonzero, aten.equal, aten.is_nonzero, aten.lift_fresh}


class Tape(TorchDispatchMode):
    """Every operation, to be repeated on the same memory, as a CUDA graph repeats kernels."""

    def __init__(self):
        super().__init__()
        self.calls, self.replays = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in FORBIDDEN:
            raise RuntimeError(f"{function} is not permitted when a stream is capturing\nand more lines")
        found = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, found))
        return found

    @torch.no_grad()
    def replay(self):
        self.replays += 1
        for function, args, kwargs, found in self.calls:
            again = function(*args, **kwargs)
            for kept, new in zip(tree_leaves(found), tree_leaves(again), strict=True):
                if isinstance(kept, torch.Tensor) and kept.data_ptr() != new.data_ptr():
                    kept.detach().copy_(new)


class Cuda:
    """What `graphs` needs of torch.cuda. As there, what is recorded has not run until it is replayed."""

    def __init__(self, trainers):
        self.trainers, self.tapes, self.events = trainers, [], []
        self.numbers = itertools.count()
        self.now = "cuda:0"
        self.here = [self.Stream()]
        self.default_capture_stream = None

    def Stream(self):  # noqa: N802
        stream = SimpleNamespace(name=next(self.numbers), device=self.now)
        stream.wait_stream = lambda other: self.events.append((stream, "waits for", other))
        return stream

    def CUDAGraph(self):  # noqa: N802
        self.tapes.append(Tape())
        return self.tapes[-1]

    def current_stream(self):
        return self.here[-1]

    @contextlib.contextmanager
    def stream(self, stream):
        before = list(self.here)
        self.here.append(stream)
        self.events.append((stream, "works", None))
        try:
            yield
        finally:
            self.here[:] = before

    def device(self, device):
        return contextlib.nullcontext()

    def synchronize(self):
        self.events.append((self.here[-1], "is done", None))

    @contextlib.contextmanager
    def graph(self, tape, stream=None):
        """As torch's: with one stream for all that are given none, and left only if nothing went wrong."""
        if stream is None:
            self.default_capture_stream = stream = self.default_capture_stream or self.Stream()
        self.here.append(stream)
        before = [{k: v.clone() for k, v in trainer.state()[0].items()} for trainer in self.trainers]
        self.events.append((self.here[-1], "records", None))
        try:
            with tape:
                yield
            self.here.pop()
        finally:
            for trainer, values in zip(self.trainers, before, strict=True):
                for name, value in trainer.state()[0].items():
                    value.copy_(values[name])


def fit_of(architecture, recipe, seed=0, n=26, device="cpu", **model_args):
    torch.manual_seed(seed)
    model = zoo.create(architecture, num_classes=10, in_chans=1, **model_args)
    rng = np.random.default_rng(5)
    images, labels = rng.random((n, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, n)
    recipe = recipe.filled(DIGITS)
    loader = Loader(images, labels, recipe, DIGITS.flip, seed, device)
    return Trainer(model.to(device, memory_format=torch.channels_last), loader, recipe)


def train(trainers):
    for _ in TrainerGroup(trainers).epochs(lambda *_: None, lambda: False):
        pass
    return trainers


@pytest.fixture
def on_tape(monkeypatch):
    """Lets networks on the CPU train as if on CUDA; gives the fake."""

    def start(trainers):
        fake = Cuda(trainers)
        monkeypatch.setattr(cuda_graph, "cuda", fake)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
        monkeypatch.setattr(side_by_side, "step_sequentially", RecordedSteps())
        return fake

    return start


def same_weights(left, right):
    for one, other in zip(left, right, strict=True):
        for number in ("loss", "accuracy", "lr", "lambda"):
            assert one.curve[-1][number] == other.curve[-1][number]
        for (name, value), expected in zip(
            one.model.state_dict().items(), other.model.state_dict().values(), strict=True
        ):
            assert torch.equal(value, expected), name


def two(precision="float32"):
    """26 samples in batches of 8, 8, 8 and 2; the learning rate drops after two of four epochs."""
    recipe = Recipe("any", epochs=4, steps=(0.5,), batch_size=8, precision=precision)
    return [fit_of("in_resnet14", recipe), fit_of("preact_resnet14", recipe, seed=1)]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_replayed_steps_are_the_steps_themselves(on_tape, precision):
    expected = train(two(precision))
    trainers = two(precision)
    fake = on_tape(trainers)
    same_weights(train(trainers), expected)
    # for each rate: the first step of either size runs, 5 of the full size and 1 of the other are replayed
    assert [tape.replays for tape in fake.tapes] == [5, 1, 5, 1]


@pytest.mark.slow
def test_every_branch_starts_from_the_graph_and_ends_in_it(on_tape):
    trainers = two()
    fake = on_tape(trainers)
    train(trainers)
    start = [what for _, what, _ in fake.events].index("records") + 1
    main = fake.events[start - 1][0]
    taken = fake.events[start : start + 6]
    a, b = taken[0][0], taken[2][0]
    assert len({stream.name for stream in (main, a, b)}) == 3
    assert taken == [
        (a, "waits for", main),
        (a, "works", None),
        (b, "waits for", main),
        (b, "works", None),
        (main, "waits for", a),
        (main, "waits for", b),
    ]


@pytest.mark.slow
def test_what_is_recorded_is_of_the_device_in_use_whatever_was_recorded_before(on_tape):
    fake = on_tape([])
    for device in ("cuda:0", "cuda:1"):
        fake.now, fake.events, fake.trainers = device, [], two()
        fake.here, trainers, steps = [fake.Stream()], fake.trainers, RecordedSteps()
        for _ in range(3):
            steps(trainers, [trainer.loader.draw() for trainer in trainers])
        assert "records" in {what for _, what, _ in fake.events}
        assert {stream.device for stream, _, _ in fake.events} == {device}


@pytest.mark.slow
def test_a_network_that_leaves_is_no_longer_trained_and_the_others_are_as_if_alone(on_tape):
    recipe = Recipe("any", epochs=4, steps=(), batch_size=13)
    short = Recipe("any", epochs=2, steps=(), batch_size=13)
    (expected,) = train([fit_of("in_resnet14", recipe)])
    (ended,) = train([fit_of("in_resnet14", short, seed=1)])
    trainers = [fit_of("in_resnet14", recipe), fit_of("in_resnet14", short, seed=1)]
    fake = on_tape(trainers)
    same_weights(train(trainers), [expected, ended])
    assert [tape.replays for tape in fake.tapes] == [3, 3]


@pytest.mark.slow
def test_what_cannot_be_recorded_is_trained_all_the_same_and_said(on_tape):
    def reading(trainer):
        plain = trainer.model.forward
        trainer.model.forward = lambda x: plain(x) * (1.0 if x.sum().item() else 0.0)
        return trainer

    (expected,) = train(two()[:1])
    trainers = [reading(two()[0])]
    fake = on_tape(trainers)
    main = fake.here[0]
    with pytest.warns(
        UserWarning, match=r"^training is slower: it cannot run as a CUDA graph \(.*capturing\)$"
    ):
        train(trainers)
    assert fake.here == [main]  # the caller's stream is what it was
    same_weights(trainers, [expected])


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", [n for n in models.ARCHITECTURES if "14" in n or "20_4x16d" in n] + ["keep"]
)
def test_the_step_of_every_architecture_can_be_recorded(architecture):
    recipe = Recipe("any", epochs=9, batch_size=4)
    name, args = ("in_resnet14", {"stored": "keep"}) if architecture == "keep" else (architecture, {})
    trainer = fit_of(name, recipe, n=4, **args)
    trainer.begin()
    trainer.train_step(
        *trainer.loader.cut(trainer.loader.draw())
    )  # as on CUDA, the first one is not recorded
    with Tape() as tape:
        trainer.train_step(*trainer.loader.cut(trainer.loader.draw()))
    assert len(tape.calls) > 100


def plain_losses(trainer, steps):
    """A loop as a user would write it, on the same draws; and the losses of its steps."""
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    device, losses = trainer.loader.labels.device, []
    for _ in range(steps):
        images, labels = trainer.loader.cut(trainer.loader.draw().to(device))
        with torch.autocast(device.type, torch.bfloat16, enabled=trainer.recipe.precision == "bf16"):
            logits = trainer.model.train()(images)
        loss = F.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_twenty_steps_are_those_of_a_plain_loop(device, precision):
    recipe = Recipe("any", epochs=20, steps=(), batch_size=16, precision=precision)
    starts = [("in_resnet14", 0), ("lambda_in_resnet14", 1)]

    def fresh():
        return [fit_of(name, recipe, seed, n=16, device=device) for name, seed in starts]

    trainers = train(fresh())
    for trainer, plain in zip(trainers, fresh(), strict=True):
        losses = plain_losses(plain, 20)
        tolerance = 1e-4 if precision == "float32" else 1e-2
        assert [line["loss"] for line in trainer.curve] == pytest.approx(losses, rel=tolerance, abs=1e-6)
        assert losses[-1] < losses[0]
        assert all(value.dtype != torch.bfloat16 for value in trainer.model.state_dict().values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA")
def test_on_cuda_steps_are_recorded_and_networks_together_are_the_networks_alone():
    recipe = Recipe("any", epochs=6, batch_size=16)
    together_ = [fit_of("in_resnet14", recipe, seed, n=40, device="cuda") for seed in range(3)]
    train(together_)
    for seed, trainer in enumerate(together_):
        (alone,) = train([fit_of("in_resnet14", recipe, seed, n=40, device="cuda")])
        assert [line["loss"] for line in trainer.curve] == pytest.approx(
            [line["loss"] for line in alone.curve], rel=1e-4
        )
