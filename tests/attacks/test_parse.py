"""Specs of attacks, and the columns they are shown in."""

import math

import numpy as np
import pytest
from support.attacked import tiny, tiny_batch

import robust_interp
from robust_interp import attacks, data
from robust_interp.attacks import AttackType
from robust_interp.core.errors import UserError
from robust_interp.store.cells import Cell, ModelCard

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


# --- specs -------------------------------------------------------------------------------------------


def resolve(text, eps=(8 / 255,), defaults=None, seed=0):
    return attacks.parse_attacks(text, list(eps), defaults or {}, seed)


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("fgsm(eps=2/255)", {"eps": 2 / 255}),
        ("fgsm(eps = 0.5)", {"eps": 0.5}),
        ("ifgsm", {"eps": 8 / 255, "alpha": 2 / 255, "steps": 20}),
        ("pgd", {"eps": 8 / 255, "alpha": 2 / 255, "steps": 20}),
        ("pgd(alpha=eps/4, steps=7)", {"eps": 8 / 255, "alpha": 2 / 255, "steps": 7}),
        ("pgd(eps=4/255, alpha=eps/2)", {"eps": 4 / 255, "alpha": 2 / 255, "steps": 20}),
        ("pgd(alpha=eps)", {"eps": 8 / 255, "alpha": 8 / 255, "steps": 20}),
        ("pgd(alpha=0.25*eps)", {"eps": 8 / 255, "alpha": 2 / 255, "steps": 20}),
        ("pgd(alpha=eps*0.25)", {"eps": 8 / 255, "alpha": 2 / 255, "steps": 20}),
        ("pgd(alpha=3*2/255)", {"eps": 8 / 255, "alpha": 6 / 255, "steps": 20}),
        (" pgd ( alpha = 1/255 , steps = 3 ) ", {"eps": 8 / 255, "alpha": 1 / 255, "steps": 3}),
    ],
)
def test_specs_are_read(text, params):
    (found,) = resolve(text)
    assert found.kind == "attack"
    assert found.params == pytest.approx(params, rel=1e-12)
    assert found.params.keys() == params.keys()


def test_commas_inside_brackets_do_not_split_and_empty_parts_are_dropped():
    found = resolve("fgsm,, pgd(alpha=1/255, steps=5), ifgsm(eps=1/255, alpha=eps/2),")
    assert [p.name for p in found] == ["fgsm", "pgd", "ifgsm"]
    assert found[1].params["steps"] == 5


def test_none_is_no_attack_and_nothing_is_an_error():
    assert resolve("none") == []
    assert resolve(" none ") == []
    for text in ("", " , "):
        with pytest.raises(UserError, match="no attack given; use none"):
            resolve(text)


@pytest.mark.parametrize(
    "eps", ["-1", "-1/255", "8", "1.0001", "nan", "inf", "1e999", "True", "False", "'8/255'", "eps"]
)
def test_a_radius_outside_zero_to_one_is_refused(eps):
    with pytest.raises(
        UserError, match=r"eps must be above 0 and at most 1 in \[0, 1\] pixels \(such as 8/255\)"
    ):
        resolve(f"pgd(eps={eps})")


@pytest.mark.parametrize("text", ["pgd(eps=0)", "pgd(eps=0/255, alpha=eps/4)", "pgd(eps=0.0)"])
def test_a_radius_of_zero_is_a_control_where_a_spec_names_it(text):
    (found,) = resolve(text)
    assert (found.column.split("_")[-1], found.params["eps"], found.eps_255) == ("0", 0, 0)
    assert attacks.step_warning(found) is None


@pytest.mark.parametrize("eps", [0, -1, math.nan, math.inf, -math.inf, 8, 1.5, True, 8 + 0j])
def test_a_radius_outside_zero_to_one_is_refused_from_python_too(eps):
    with pytest.raises(UserError, match="eps must be above 0 and at most 1"):
        attacks.check_eps(eps)
    with pytest.raises(UserError, match="eps must be above 0 and at most 1"):
        robust_interp.evaluate(tiny(), (*tiny_batch(3), 5), eps=(eps,))


def test_a_text_is_a_radius_on_the_command_line_alone():
    """There it is in units of 1/255, so that what looks like pixels is refused; None is no radius."""
    for eps in ("0.03", None):
        with pytest.raises(UserError, match="eps must be above 0 and at most 1"):
            attacks.check_eps(eps)
    with pytest.raises(UserError, match=r"looks like \[0, 1\] pixels"):
        robust_interp.evaluate(tiny(), (*tiny_batch(3), 5), eps=("0.03",))
    with pytest.raises(UserError, match="eps must be above 0 and at most 1"):
        robust_interp.evaluate(tiny(), (*tiny_batch(3), 5), eps=(None,))


@pytest.mark.parametrize("eps", [1, 1.0, 1e-9, np.float64(8 / 255), np.float32(0.03)])
def test_a_radius_from_zero_to_one_is_accepted_whatever_kind_of_float(eps):
    attacks.check_eps(eps)
    (found,) = attacks.parse_attacks("pgd(alpha=eps/4)", [eps], {}, 0)
    assert found.params["eps"] == eps
    assert type(found.params["eps"]) is float


@pytest.mark.parametrize("alpha", ["0", "-1/255", "1.5", "2", "nan", "True", "'x'", "2*eps*eps", "-eps/4"])
def test_a_step_size_outside_zero_to_one_is_refused(alpha):
    with pytest.raises(UserError) as caught:
        resolve(f"pgd(alpha={alpha})")
    assert "alpha" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("steps", ["0", "-1", "1.5", "20.0", "True", "nan", "'3'", "eps"])
def test_steps_that_are_not_a_whole_number_from_one_are_refused(steps):
    with pytest.raises(UserError, match="pgd: steps must be a whole number of at least 1, not"):
        resolve(f"pgd(steps={steps})")


def test_an_unknown_attack_names_the_near_ones():
    with pytest.raises(UserError, match=r"unknown attack 'pdg'; did you mean .*pgd"):
        resolve("pdg")
    with pytest.raises(UserError, match=r"unknown attack 'ifsgm'; did you mean .*ifgsm"):
        resolve("fgsm,ifsgm(steps=3)")
    with pytest.raises(UserError, match=f"unknown attack 'zzz'; known: {', '.join(sorted(attacks.ATTACKS))}"):
        resolve("zzz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pgd(step=3)", "pgd has no parameter 'step'; it takes eps, alpha, steps"),
        ("fgsm(alpha=1/255)", "fgsm has no parameter 'alpha'; it takes eps"),
        ("pgd(random_start=False)", "pgd has no parameter 'random_start'; it takes eps, alpha, steps"),
    ],
)
def test_an_unknown_parameter_names_those_there_are(text, message):
    with pytest.raises(UserError, match=message):
        resolve(text)


@pytest.mark.parametrize(
    "text",
    [
        "pgd(8/255)",
        "pgd(eps=)",
        "pgd(eps=1/255",
        "pgd)",
        "pgd(**x)",
        "a.b(eps=1)",
        "pgd(eps=1/0)",
        "pgd(alpha=eps/eps)",
        "pgd(alpha=eps+1)",
        "pgd(alpha=2**-8)",
        "pgd(eps=__import__('os').getpid())",
        "pgd(eps=[1])",
        "pgd(eps=1/255, eps=2/255)",
        "pgd(alpha=1/eps)",
        "pgd eps=1",
        "2/255",
        "pgd(eps=True/2)",
    ],
)
def test_what_is_no_spec_is_refused_in_one_line_and_never_evaluated(text):
    with pytest.raises(UserError) as caught:
        resolve(text)
    assert "\n" not in str(caught.value)


# --- columns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eps", "column", "eps_255"),
    [
        (2 / 255, "pgd_2", 2.0),
        (0.5 / 255, "pgd_0.5", 0.5),
        (0.031, "pgd_7.905", 7.905),
        (8 / 255, "pgd_8", 8.0),
        (1.0, "pgd_255", 255.0),
        (0.1 / 255, "pgd_0.1", 0.1),
    ],
)
def test_columns_give_the_radius_in_255ths(eps, column, eps_255):
    (found,) = resolve("pgd", [eps])
    assert found.column == column
    assert found.eps_255 == eps_255


def test_0_031_and_8_255_never_share_a_column():
    assert [p.column for p in resolve("pgd,pgd(eps=8/255)", [0.031])] == ["pgd_7.905", "pgd_8"]


def test_each_spec_is_measured_at_each_radius_but_one_with_its_own_eps_only_there():
    found = resolve("fgsm, pgd(eps=6/255), ifgsm", [1 / 255, 2 / 255])
    assert [p.column for p in found] == ["fgsm_1", "fgsm_2", "pgd_6", "ifgsm_1", "ifgsm_2"]


def test_duplicates_are_measured_once():
    text = (
        "pgd, pgd, pgd(eps=8/255), pgd(alpha=2/255), pgd(steps=20, alpha=eps/4), pgd(steps=21), fgsm,fgsm()"
    )
    assert [p.column for p in resolve(text)] == ["pgd_8", "pgd(steps=21)_8", "fgsm_8"]


def test_parameters_that_differ_from_the_defaults_stand_in_the_column():
    specs = {
        "pgd": "pgd_8",
        "pgd(steps=40)": "pgd(steps=40)_8",
        "pgd(alpha=1/255)": "pgd(alpha=1/255)_8",
        "pgd(steps=40, alpha=1/255)": "pgd(alpha=1/255,steps=40)_8",
        "pgd(alpha=eps)": "pgd(alpha=8/255)_8",
        "ifgsm(alpha=0.5/255)": "ifgsm(alpha=0.5/255)_8",
    }
    assert [p.column for p in resolve(",".join(specs))] == list(specs.values())


def test_a_datasets_own_defaults_count_as_defaults():
    digits = data.DATASETS["digits"].attack_defaults
    plain, written, papers = resolve("pgd, fgsm, pgd(alpha=1/255), pgd(alpha=eps/4)", [32 / 255], digits)
    assert plain.column == "pgd_32"
    assert plain.params["alpha"] == 8 / 255
    assert written.params == {"eps": 32 / 255}
    assert papers.column == "pgd(alpha=1/255)_32"
    assert resolve("pgd", [32 / 255], {})[0].params["alpha"] == 2 / 255


def test_different_parameters_never_share_a_column_or_a_key():
    found = [
        p
        for eps in (1 / 255, 0.031, 8 / 255)
        for alpha in ("", "alpha=eps,", "alpha=eps/3,", "alpha=1.5/255,")
        for steps in ("steps=20", "steps=21", "steps=2")
        for p in resolve(f"pgd({alpha}{steps}), ifgsm({alpha}{steps})", [eps])
    ]
    by_column = {}
    for p in found:
        by_column.setdefault(p.column, []).append(p.params)
    for params in by_column.values():
        assert all(p == params[0] for p in params)
    card = ModelCard("m", {"weights": "x"})
    keys = {Cell(card, "d", "f", p, {}).key for p in found}
    assert len(keys) == len(by_column) == 2 * 3 * 4 * 3


@pytest.mark.parametrize(
    "text",
    [
        "pgd, pgd",
        "pgd(alpha=eps/3), pgd(alpha=1/255)",
        "pgd, pgd(eps=3/255)",
        "fgsm, fgsm(eps=3.00000000001/255)",
    ],
)
def test_attacks_that_are_the_same_up_to_rounding_are_one(text):
    assert len(resolve(text, [3 / 255])) == 1


def test_different_attacks_in_one_column_are_refused():
    kind = AttackType("FGSM", {"loss": "ce", "share": 1})
    with attacks.ATTACKS.registered("worded", kind):
        with pytest.raises(
            UserError, match=r"two different attacks would share the column worded\(loss=x,share=2\)_8"
        ):
            resolve("worded(loss=x, share=2), worded(loss='x,share=2')")
        assert len(resolve("worded(loss=x, share=2), worded(loss='x,share=3')")) == 2


# --- step sizes that fit badly -----------------------------------------------------------------------


def test_a_step_larger_than_the_ball_is_remarked_on():
    (found,) = resolve("pgd", [1 / 255])
    warning = attacks.step_warning(found)
    assert warning == (
        "pgd_1: the step 2/255 (the default, which is the paper's; alpha=eps/4 is smaller) exceeds eps, so "
        "each step overshoots the ball"
    )
    (found,) = resolve("pgd(alpha=3/255)", [1 / 255])
    assert "the step 3/255 exceeds eps" in attacks.step_warning(found)


def test_steps_that_cannot_reach_the_edge_are_remarked_on():
    (found,) = resolve("pgd(alpha=1/255, steps=5)")
    assert attacks.step_warning(found).endswith("5 steps of 1/255 cannot reach eps")


@pytest.mark.parametrize(
    "text", ["fgsm", "pgd", "pgd(alpha=eps)", "ifgsm(alpha=1/255,steps=8)", "pgd(alpha=eps/3,steps=3)"]
)
def test_step_sizes_that_fit_are_not_remarked_on(text):
    (found,) = resolve(text)
    assert attacks.step_warning(found) is None


@pytest.mark.parametrize(("text", "passes"), [("fgsm", 4), ("pgd", 61), ("ifgsm(steps=5)", 16)])
def test_the_work_of_an_attack_is_a_forward_and_a_double_backward_a_step_and_the_prediction(text, passes):
    assert attacks.passes(resolve(text)[0]) == passes
