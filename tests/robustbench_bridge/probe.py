"""Run with the real RobustBench first on the path: says as JSON what it makes of our models and files.

Usage: probe.py FOLDER, which holds `model_info/` and is otherwise free to write in.
"""

import contextlib
import hashlib
import io
import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import timm
import torch
from torch import nn

from robust_interp import robustbench_bridge
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.ensemble import Ensemble
from robust_interp.classifiers.resolve import ResolveOptions, resolve
from robust_interp.core.errors import UserError
from robust_interp.data.dataset import ArrayDataset

PIXELS = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
MEAN, STD = (torch.tensor(v).view(3, 1, 1) for v in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))


class Flat(nn.Module):
    """A linear classifier; how far an image is from its nearest other class is a closed form."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(192, 10)

    def forward(self, x):
        return self.linear(x.flatten(1))

    def radii(self, images, labels, order):
        """The smallest perturbation of pixels in the norm dual to `order`, when normalised, float64; (N,)."""
        weight, bias = self.linear.weight.double() / 0.25, self.linear.bias.double()
        logits = (images.double() - 0.5).flatten(1) @ weight.T + bias
        gap = logits.gather(1, labels[:, None]) - logits
        away = (weight[labels][:, None] - weight[None]).norm(order, dim=2)
        return (gap / away).masked_fill(gap == 0, torch.inf).min(dim=1).values


class Brightness(nn.Module):
    """The class is a tenth of the mean pixel value in 0 to 255."""

    def forward(self, x):
        return -((255 * x.mean(dim=(1, 2, 3)) / 10)[:, None] - torch.arange(10.0)).square()


def refused(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except UserError as error:
        return str(error)
    return None


def aliases(rb):
    """Our checkpoint through load_model against the bare network on images normalised by hand."""
    bare = timm.create_model("in_resnet20.cifar10_quick_12epochs_bf16_seed0", pretrained=True).eval()
    with torch.no_grad():
        expected = bare((PIXELS - MEAN) / STD)
        models = {
            threat_model: rb.load_model("in-ResNet20", dataset="cifar10", threat_model=threat_model)
            for threat_model in ("Linf", "L2", "corruptions")
        }
        far = {name: (model(PIXELS) - expected).abs().max().item() for name, model in models.items()}
    custom = Path("custom.pth")
    torch.save({"state_dict": bare.state_dict()}, custom)
    model = rb.load_model("in_resnet20", threat_model="L2", custom_checkpoint=str(custom))
    cfg = models["Linf"].pretrained_cfg
    try:
        rb.load_model("plain_net20", dataset="cifar100")
        elsewhere = None
    except KeyError as error:  # as for any name that RobustBench does not know
        elsewhere = str(error)
    return {
        "far": far,
        "custom": (model(PIXELS) - expected).abs().max().item(),
        "training": any(model.training for model in models.values()),
        "mean_std": [*cfg["mean"], *cfg["std"]],
        "cifar100": elsewhere,
        "no data": refused(rb.benchmark, model, n_examples=1, eps=8 / 255, data_dir="none"),
    }


def attacked(rb):
    """benchmark() with AutoAttack on a model whose robust accuracy is known."""
    import pyautoattack.autoattack as original
    import robustbench.eval as evaluation

    def few_steps(name, count):  # whatever AutoAttack asks for: a linear classifier is broken at once
        short = {name: property(lambda self: count, lambda self, value: None)}
        return lambda attack: type(attack.__name__, (attack,), short)

    original.SquareAttack = few_steps("n_queries", 20)(original.SquareAttack)
    original.FABAttack_PT = few_steps("n_iter", 10)(original.FABAttack_PT)
    torch.manual_seed(0)
    flat, images = Flat(), 0.3 + 0.4 * torch.rand(6, 3, 8, 8)
    model = Classifier(flat, [0.5] * 3, [0.25] * 3).eval()
    labels = model(images).argmax(1)
    labels[0] = (labels[0] + 1) % 10
    evaluation.load_clean_dataset = lambda dataset, n, folder, prepr: (images[:n], labels[:n])
    found = {}
    for threat_model, dual in (("Linf", 1), ("L2", 2)):
        radii = flat.radii(images, labels, dual).sort().values
        eps = (radii[3] + radii[4]).item() / 2
        options = {"threat_model": threat_model, "n_examples": 6, "batch_size": 4, "eps": eps}
        if threat_model == "L2":
            options |= {"aa_state_path": Path("state"), "log_path": "log"}
        found[threat_model] = rb.benchmark(model, **options)
    found["resumed"] = refused(rb.benchmark, model, **options)
    found["log"] = Path("log").read_text().splitlines()[-1]
    return found


def corrupted(rb):
    """benchmark() on a CIFAR-10-C of two corruptions whose first 20 images are written."""
    import robustbench.data as data
    import robustbench.eval as evaluation
    from robustbench.model_zoo.enums import BenchmarkDataset, ThreatModel

    folder = Path("data/CIFAR-10-C")
    folder.mkdir(parents=True)
    labels = np.arange(10_000) % 9
    np.save(folder / "labels.npy", labels)
    for name, wrong_per_severity in (("fog", 2), ("snow", 0)):
        images = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, (50_000, 32, 32, 3))
        for severity in range(1, 6):
            shown = labels[:20].copy()
            shown[: wrong_per_severity * severity] += 1
            images[(severity - 1) * 10_000 :][:20] = 10 * shown[:, None, None, None]
        images.flush()
    data.CORRUPTIONS_DICT[BenchmarkDataset.cifar_10][ThreatModel.corruptions] = ("fog", "snow")
    clean = torch.from_numpy(labels[:20])
    images = (10 / 255 * clean.float()).view(-1, 1, 1, 1).expand(-1, 3, 32, 32)
    evaluation.load_clean_dataset = lambda dataset, n, folder, prepr: (images[:n], clean[:n])
    options = {"threat_model": "corruptions", "n_examples": 20, "data_dir": "data", "to_disk": True}
    model = Ensemble([Classifier(Brightness()), Classifier(Brightness())]).eval()
    accuracies = [rb.benchmark(model, **options, model_name=name) for name in ("One", "Two")]
    written = Path("model_info/cifar10/corruptions")
    return {
        "accuracies": accuracies,
        "json": json.loads((written / "One.json").read_text()),
        "table": (written / "unaggregated_results.csv").read_text().splitlines(),
        "absent": refused(
            rb.benchmark, Brightness().eval(), **options | {"data_dir": "none"}, model_name="One"
        ),
    }


def zoo():
    """RobustBench's own models, from weights written here."""
    import gdown
    from robustbench.model_zoo import model_dicts
    from robustbench.model_zoo.enums import BenchmarkDataset, ThreatModel

    name, key = "Hendrycks2020AugMix_WRN", (BenchmarkDataset.cifar_10, ThreatModel.corruptions)
    path = Path("weights/cifar10/corruptions") / f"{name}.pt"
    os.environ["ROBUSTBENCH_MODEL_DIR"] = "weights"
    found = {
        "missing": refused(robustbench_bridge.load, name, threat_model="corruptions"),
        "of a list": refused(robustbench_bridge.load, "Chen2020Adversarial"),
        "of timm": refused(robustbench_bridge.load, "Debenedetti2022Light_XCiT-S12"),
        "unknown": refused(robustbench_bridge.load, "Hendrycks2020AugMix_WRM", threat_model="corruptions"),
        "threat": refused(robustbench_bridge.load, name, threat_model="L1"),
        "untouched": not Path("weights").exists(),
    }
    torch.manual_seed(1)
    model = model_dicts[key[0]][key[1]][name]["model"]().eval()
    state = {f"module.{k}": v for k, v in model.state_dict().items() if k not in ("mu", "sigma")}
    path.parent.mkdir(parents=True)
    torch.save({"state_dict": state}, path)
    loaded = robustbench_bridge.load(name, threat_model="corruptions")
    with torch.no_grad():
        found["far"] = (loaded(PIXELS) - model(PIXELS)).abs().max().item()
    images = (255 * PIXELS).to(torch.uint8).numpy()
    dataset = ArrayDataset("cifar10", images, np.arange(6), 10)
    (target,) = resolve([f"robustbench:{name}(threat=corruptions)"], ResolveOptions(), dataset)
    with torch.no_grad():
        found["far as a classifier"] = (target.load("cpu")(PIXELS) - model(PIXELS)).abs().max().item()
    found["card"] = [target.card.model, target.card.recorded_clean]
    found["sha256"] = target.card.weights_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    found["parameter"] = refused(resolve, [f"robustbench:{name}(eps=1)"], ResolveOptions(), dataset)
    checkpoint = ResolveOptions(checkpoint=str(path))
    found["checkpoint"] = refused(resolve, [f"robustbench:{name}"], checkpoint, dataset)
    path.write_bytes(b"\n<!DOCTYPE html><html>Too many users have viewed this file</html>")
    found["page"] = refused(robustbench_bridge.load, name, threat_model="corruptions")
    path.write_bytes(pickle.dumps({"state_dict": os.getcwd}))
    found["code"] = refused(robustbench_bridge.load, name, threat_model="corruptions")
    asked = []

    def download(id, output):
        asked.append([id, output])
        Path(output).write_text("<html>quota</html>")

    path.unlink()
    gdown.download = download
    found["quota"] = refused(robustbench_bridge.load, name, threat_model="corruptions", download=True)
    found["asked"] = asked == [[model_dicts[key[0]][key[1]][name]["gdrive_id"], str(path)]]
    return found


def aliased():
    """Whether RobustBench is mended that was imported with pyautoattack itself as its AutoAttack."""
    import pyautoattack
    import robustbench.eval as evaluation

    evaluation.AutoAttack = pyautoattack.AutoAttack
    with robustbench_bridge.robustbench():
        within = evaluation.AutoAttack
    return within is not pyautoattack.AutoAttack and evaluation.AutoAttack is pyautoattack.AutoAttack


def read_back(rb):
    """What RobustBench's own readers make of the JSON in model_info."""
    from robustbench.utils import ModelInfo, get_leaderboard_latex

    files = sorted(Path("model_info").rglob("*.json"))
    entries = {str(path): ModelInfo(**json.loads(path.read_text())) for path in files}
    keys = ["clean_acc", "autoattack_acc", "additional_data", "architecture", "venue"]
    table = get_leaderboard_latex("cifar10", "L2", l_keys=keys, sort_by="autoattack_acc")
    return {"entries": {path: entry.autoattack_acc for path, entry in entries.items()}, "table": table}


def main():
    os.chdir(sys.argv[1])
    sys.modules["pkg_resources"] = None  # as with a new setuptools
    told = {}
    with contextlib.redirect_stdout(io.StringIO()), robustbench_bridge.robustbench() as rb:
        for probe in (read_back, aliases, attacked, corrupted):
            told[probe.__name__] = probe(rb)
    told["zoo"], told["aliased"] = zoo(), aliased()
    told["left"] = [name for name in ("autoattack", "autoattack.state") if name in sys.modules]
    print(json.dumps(told, default=str))


if __name__ == "__main__":
    main()
