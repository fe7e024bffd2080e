"""What several test modules share: small checkpoints, and processes that can be killed."""

import copy
import multiprocessing
import os
import shutil
import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("support")  # asserts there tell as much as those in a test

os.environ.setdefault("OMP_NUM_THREADS", "1")  # on such small tensors more threads only cost
os.environ["ROBUST_INTERP_CACHE"] = "off"  # nothing is left in the home folder, or found there


def _holds_temporary_files(memory):
    """Whether a folder in memory is there, has 4 GiB free, and can hold programs that are run."""
    if not os.access(memory, os.W_OK):
        return False
    found = os.statvfs(memory)
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= 4 * 2**30


if _holds_temporary_files("/dev/shm"):  # a store waits for the disk at every commit: a third of the time
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What is exhaustive is slow: -m "not slow" takes the place of the usual -m "not exhaustive"."""
    for item in items:
        if item.get_closest_marker("exhaustive"):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def tiny_zoo(tmp_path_factory):
    """A zoo of untrained digits networks of depth 14: in_resnet14 with seeds 0 and 1, preact_resnet14."""
    import torch

    from robust_interp import zoo
    from robust_interp.data import DATASETS

    place, kind = tmp_path_factory.mktemp("zoo"), DATASETS["digits"]
    for architecture, seed in (("in_resnet14", 0), ("in_resnet14", 1), ("preact_resnet14", 0)):
        torch.manual_seed(seed)
        model = zoo.create(architecture, num_classes=10, in_chans=1)
        cfg = {"num_classes": 10, "input_size": [1, 8, 8], "mean": list(kind.mean), "std": list(kind.std)}
        record = {
            "lambda_init": [0.2, 0.25] if architecture == "in_resnet14" else None,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "clean_accuracy": 10.0,
            "clean_n": 450,
        }
        zoo.save(model, place / f"{architecture}.digits_none_seed{seed}", cfg, {}, record, half=False)
    return place


@pytest.fixture
def own_zoo(tiny_zoo, tmp_path):
    """A copy of `tiny_zoo` that a test may change."""
    return Path(shutil.copytree(tiny_zoo, tmp_path / "zoo"))


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """In an empty working folder, with torch's generator seeded here and put back afterwards."""
    import torch

    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def fresh():
    """Registries, also timm's, that are put back afterwards; gives what puts ours back at once."""
    from timm.models import _registry

    from robust_interp import plugins

    of_timm = {
        name: {key: copy.copy(each) for key, each in value.items()} if isinstance(value, dict) else set(value)
        for name, value in vars(_registry).items()
        if name.startswith("_mod") and isinstance(value, dict | set)
    }
    known = {kind: set(registry) for kind, registry in plugins.REGISTRIES.items()}

    def forget():
        for kind, registry in plugins.REGISTRIES.items():
            for name in set(registry) - known[kind]:
                registry.remove(name)

    yield forget
    forget()
    for name, value in of_timm.items():
        vars(_registry)[name].clear()
        vars(_registry)[name].update(value)


CIFAR_FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}


@pytest.fixture(params=CIFAR_FOLDERS)
def real_cifar(request):
    """The name of an official CIFAR, and the folder that holds it; as `cifar_root`."""
    return request.param, _root_of(request.param)


@pytest.fixture
def cifar_root():
    """The folder that holds the official CIFAR-10; without it a test is skipped, and fails in CI."""
    return _root_of("cifar10")


def _root_of(name):
    from support.prerequisites import missing

    root, folder = os.environ.get("ROBUST_INTERP_DATA"), CIFAR_FOLDERS[name]
    if not root or not os.path.isdir(os.path.join(root, folder)):
        message = f"{name} is not there: set ROBUST_INTERP_DATA to the folder of {folder}"
        missing(message)
    return root


def _command(argv):
    from robust_interp.cli.main import main

    sys.exit(main(argv))


@pytest.fixture(scope="session")
def start_command():
    """Starts `robust-interp` with arguments in a process of its own, which comes with torch imported."""
    context = multiprocessing.get_context("forkserver")
    heavy = ["timm", "torchattacks", "sklearn.datasets", "pandas", "pytest"]
    context.set_forkserver_preload(["robust_interp.benchmark.benchmark", "robust_interp.cli.console", *heavy])

    def start(argv):
        process = context.Process(target=_command, args=(argv,))
        process.start()
        return process

    return start


@pytest.fixture(scope="session")
def local_ray():
    """A Ray on this machine with room for two workers, which commands run by tests find and use."""
    from support.prerequisites import needed

    ray = needed("ray")
    small = 100 * 2**20  # bytes of shared memory
    ray.init(
        "local",
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=small,
        log_to_driver=False,
    )
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def digits_classifier():
    """A bundled, trained digits network on pixels, in eval mode and frozen; not to be changed."""
    from robust_interp import zoo
    from robust_interp.classifiers.classifier import Classifier

    bundled = zoo.checkpoints(dataset="digits")
    assert bundled, "the digits checkpoints that come with the package are missing"
    cfg = bundled[0].config["pretrained_cfg"]
    return (
        Classifier(bundled[0].load(), cfg["mean"], cfg["std"], bundled[0].name).eval().requires_grad_(False)
    )


@pytest.fixture(scope="session")
def digits_test():
    """All pixels (450, 1, 8, 8) and labels of the digits test set, as tensors."""
    import torch

    from robust_interp import data

    digits = data.load("digits")
    return torch.from_numpy(digits.pixels(0, len(digits))), torch.from_numpy(digits.labels)


@pytest.fixture
def command(capsys):
    """Runs a command line in this process: exit status, standard output, standard error."""

    from robust_interp.cli.main import main

    def run(*argv):
        try:
            status = main([str(argument) for argument in argv])
        except SystemExit as stop:
            status = stop.code
        return status, *capsys.readouterr()

    return run
