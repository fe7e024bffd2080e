"""Models on normalised images: normalised once whatever they are wrapped in, or said not to be."""

import warnings

import numpy as np
import pytest
import torch
from support.messages import one_line
from support.one_pixel import evaluate, measured
from torch import nn

from robust_interp import zoo
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.ensemble import Ensemble

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.filterwarnings("ignore::UserWarning")]

TIMM_MEAN, TIMM_STD = (0.6, 0.5, 0.4), (0.3, 0.2, 0.1)


def timm_model(mean=TIMM_MEAN, std=TIMM_STD):
    model = zoo.create("preact_resnet14", num_classes=10).eval()
    model.pretrained_cfg = dict(model.pretrained_cfg) | {"mean": mean, "std": std}
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
    return model


def colours(n=60):
    return np.random.default_rng(0).random((n, 3, 8, 8), dtype=np.float32)


@torch.no_grad()
def probabilities(model, images, mean=(0, 0, 0), std=(1, 1, 1)):
    """Of a model on images that are normalised in float64, without any of the package."""
    columns = [(images[:, c].astype(np.float64) - mean[c]) / std[c] for c in range(3)]
    return model(torch.from_numpy(np.stack(columns, axis=1)).float()).double().softmax(1).numpy()


def told(models, dataset):
    """The table, and what was said of mean and std."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = evaluate(models, dataset, eps=(8 / 255,))
    return table, [str(w.message) for w in caught if "mean" in str(w.message)]


@pytest.mark.slow
def test_a_wrapped_timm_model_is_normalised_once_or_says_that_it_is_not():
    model, images = timm_model(), colours()
    right = probabilities(model, images, TIMM_MEAN, TIMM_STD).argmax(1)
    raw = 100 * (probabilities(model, images).argmax(1) == right).mean()
    assert raw < 90  # it matters here
    dataset = images, right, 10

    normalised = {
        "alone": model,
        "parallel": nn.DataParallel(model),
        "classifier": Classifier(model, TIMM_MEAN, TIMM_STD),
        "classifier in parallel": nn.DataParallel(Classifier(model, TIMM_MEAN, TIMM_STD)),
    }
    tables = {}
    for name, wrapped in normalised.items():
        tables[name], said = told({name: wrapped}, dataset)
        assert not said, name
        assert tables[name]["accuracy"][0] == 100, name
        assert measured(tables[name]).equals(measured(tables["alone"])), name

    for wrapped in (
        nn.Sequential(model),
        nn.Sequential(nn.Identity(), nn.Sequential(model)),
        Classifier(model),
    ):
        table, said = told(wrapped, dataset)
        assert table["accuracy"][0] == pytest.approx(raw)
        assert len(said) == 1
        one_line(said[0], type(wrapped).__name__, "not applied", "0.6", "0.1")


@pytest.mark.slow
def test_an_ensemble_of_normalised_classifiers_normalises_each_and_warns_of_nothing():
    means, stds = (TIMM_MEAN, (0.1, 0.2, 0.3)), (TIMM_STD, (0.2, 0.2, 0.2))
    models, images = [timm_model(mean, std) for mean, std in zip(means, stds, strict=True)], colours()
    each = [
        probabilities(model, images, mean, std) for model, mean, std in zip(models, means, stds, strict=True)
    ]
    right = (each[0] + each[1]).argmax(1)
    ensemble = Ensemble(
        [Classifier(model, mean, std) for model, mean, std in zip(models, means, stds, strict=True)]
    )
    table, said = told(ensemble, (images, right, 10))
    assert not said
    assert table["accuracy"][0] == 100
    assert (probabilities(models[0], images).argmax(1) == right).mean() < 0.9
