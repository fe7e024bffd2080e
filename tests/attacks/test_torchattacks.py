"""What attacks/adapters.py, and nothing else, takes for granted of torchattacks and pyautoattack.

Where a new version of them is another in this, these tests say so by name, before a number is wrong.
"""

import gc
import inspect
import weakref
from importlib.util import module_from_spec, spec_from_file_location

import pyautoattack
import pytest
import torch
import torchattacks
from torch import nn

from robust_interp.attacks.table import torchattacks_classes, type_of

IMAGES = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 5))


def of_labels(model):
    return model(IMAGES).argmax(1)


TAKEN = {
    "FGSM": ["eps"],
    "BIM": ["eps", "alpha", "steps"],
    "PGD": ["eps", "alpha", "steps"],
    "MIFGSM": ["eps", "alpha", "steps", "decay"],
    "PGDL2": ["eps", "alpha", "steps"],
    "APGD": ["norm", "eps", "steps", "loss"],
    "APGDT": ["norm", "eps", "steps"],
    "Square": ["norm", "eps", "n_queries"],
    "CW": ["c", "kappa", "steps", "lr"],
    "DeepFool": ["steps", "overshoot"],
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_class_takes_what_it_is_given(name):
    takes = inspect.signature(getattr(torchattacks, name)).parameters
    lacking = [parameter for parameter in TAKEN[name] if parameter not in takes]
    assert not lacking, f"torchattacks' {name} no longer takes {lacking}"


@pytest.mark.parametrize("name", ["APGD", "APGDT", "Square", "PGD"])
def test_a_class_is_told_its_device_and_modes(model, name):
    attack = getattr(torchattacks, name)(model)
    attack.set_device(torch.device("meta"))
    assert attack.device == torch.device("meta"), "set_device no longer says where it computes"
    assert {"default"} <= set(attack.supported_mode) <= {"default", "targeted"}, "supported_mode: other words"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in torchattacks_classes() if type_of(name).targeted])
def test_a_class_that_can_be_aimed_asks_for_its_target(name):
    """Those that do not take the label for the target, and lead away from every other class."""
    source = "".join(inspect.getsource(kind) for kind in getattr(torchattacks, name).__mro__[:-2])
    assert "get_target_label(" in source.replace("def get_target_label(", "")


@pytest.mark.parametrize("replaced", ["get_logits", "inverse_tanh_space"])
def test_cw_asks_the_object_for_what_is_replaced_on_it(model, replaced):
    attack, calls = torchattacks.CW(model, steps=1), []
    original = getattr(attack, replaced)
    setattr(attack, replaced, lambda x: calls.append(1) or original(x))
    attack(IMAGES, of_labels(model))
    assert calls, f"CW no longer calls its own {replaced}: what adapters._cw puts there is without effect"


def test_cw_still_needs_what_is_mended(model):
    """It takes logits to be positive, and a pixel of 0 to infinity: if not, adapters._cw can go."""
    attack = torchattacks.CW(model)
    assert attack.inverse_tanh_space(torch.zeros(1)).isinf().all()
    outputs, labels = torch.tensor([[-1.0, -2.0]]), torch.tensor([0])
    assert attack.f(outputs, labels).item() == 0  # real and other are both 0, not -1 and -2


def test_a_targeted_attack_aims_where_the_function_says(model):
    attack, asked = torchattacks.FGSM(model, eps=0.1), []

    def aim(images, labels):
        asked.append(labels)
        return (labels + 1) % 5

    attack.set_mode_targeted_by_function(aim, quiet=True)
    labels = of_labels(model)
    found = attack(IMAGES, labels)
    assert len(asked) == 1
    pixels = IMAGES.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(pixels), (labels + 1) % 5), pixels)
    torch.testing.assert_close(found, (IMAGES - 0.1 * gradient.sign()).clamp(0, 1))


def test_a_run_of_apgd_gives_the_worst_and_the_misclassified_in_this_order(model):
    labels = of_labels(model)
    for attack in (torchattacks.APGD(model, eps=0.5, steps=5), torchattacks.APGDT(model, eps=0.5, steps=5)):
        attack.set_device(torch.device("cpu"))
        attack.target_class = 2  # APGDT: the second largest logit
        most_loss, right, loss, misclassified = attack.attack_single_run(IMAGES, labels)
        assert most_loss.shape == misclassified.shape == IMAGES.shape
        assert loss.shape == right.shape == (4,)
        broken = ~right.bool()
        assert broken.any()
        assert (model(misclassified[broken]).argmax(1) != labels[broken]).all()


def test_a_run_of_square_gives_queries_and_images(model):
    attack = torchattacks.Square(model, eps=0.1, n_queries=3)
    attack.set_device(torch.device("cpu"))
    attack.init_hyperparam(IMAGES)
    queries, found = attack.attack_single_run(IMAGES, of_labels(model))
    assert queries.shape == (4,)
    assert found.shape == IMAGES.shape


def test_square_asks_the_object_for_its_share_of_pixels(model):
    attack, asked = torchattacks.Square(model, eps=0.1, n_queries=3), []
    original = attack.p_selection
    attack.p_selection = lambda query: asked.append(query) or original(query)
    attack.set_device(torch.device("cpu"))
    attack.init_hyperparam(IMAGES)
    attack.attack_single_run(IMAGES, of_labels(model))
    assert asked, "Square no longer calls its own p_selection: what adapters puts there is without effect"


def test_autoattacks_members_are_those_that_are_run_by_themselves(model):
    attack = pyautoattack.AutoAttack(model, norm="Linf", eps=0.1, version="standard", device="cpu", seed=0)
    for member in (attack.apgd, attack.apgd_targeted, attack.square):
        member.init_hyperparam(IMAGES)
    runs = {
        "apgd": (attack.apgd, ["x", "y"]),
        "apgd_targeted": (attack.apgd_targeted, ["x", "y"]),
        "fab": (attack.fab, ["x", "y", "use_rand_start", "is_targeted"]),
        "square": (attack.square, ["x", "y"]),
    }
    for name, (member, parameters) in runs.items():
        takes = inspect.signature(member.attack_single_run).parameters
        assert set(parameters) <= set(takes), f"pyautoattack's {name}.attack_single_run takes {list(takes)}"


def as_installed():
    """Return the class of all attacks from a new copy of its module, where nothing is replaced."""
    spec = spec_from_file_location("attack_as_installed", inspect.getsourcefile(torchattacks.attack))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Attack


def stays(attack):
    """Whether what an attack was given stays in memory after the attack has let go of it."""
    given = nn.Flatten()
    alive = weakref.ref(given)
    gc.collect()
    gc.disable()
    try:
        attack.given = [given]
        del attack.given, given
        return alive() is not None
    finally:
        gc.enable()


def test_an_attack_registers_the_attacks_that_it_is_given(model):
    kind = as_installed()
    attack, inner = kind("outer", model), kind("inner", model)
    assert vars(attack).get("_attacks") == {}, (
        "_attacks is no longer the registry that adapters._set_attribute fills"
    )
    attack.steps = [inner]
    assert vars(attack)["_attacks"] == {"steps.0": inner}, "attacks inside another are registered otherwise"


@pytest.mark.slow
def test_setting_an_attribute_still_makes_a_cycle(model):
    """If not, adapters._set_attribute can go."""
    assert stays(as_installed()("any", model)), "torchattacks' own __setattr__ keeps nothing: drop ours"


@pytest.mark.slow
def test_what_replaces_it_makes_none_and_registers_alike(model):
    from robust_interp.attacks import adapters  # noqa: F401  replaces __setattr__

    attack, inner = torchattacks.FGSM(model), torchattacks.FGSM(model)
    assert not stays(attack)
    attack.steps = [inner]
    assert vars(attack)["_attacks"] == {"steps.0": inner}
