"""What `ls` says of attacks and corruptions."""

import subprocess
import sys

import pytest

from robust_interp.attacks import ATTACKS
from robust_interp.corruptions import CORRUPTIONS

PLUGIN = '''
from robust_interp.plugins import OfEps, attack, corruption


@attack(norm="L2")
def upwards(model, images, labels, *, eps, alpha=OfEps(1 / 4), rounds=3):
    """Brighter, step by step.

    More of it.
    """
    return images


@corruption
def plain(image, severity, rng):
    return image
'''


@pytest.fixture
def listed(command):
    """The lines that describe each entry of a kind, by name."""

    def show(kind, *options):
        status, out, err = command("ls", kind, *options)
        assert (status, err) == (0, "")
        found, name = {}, ""
        for line in out.splitlines()[1:]:
            if line.startswith("    "):
                found[name].append(line.strip())
            else:
                name = line.split()[0]
                found[name] = []
        return found

    return show


def test_attacks_are_listed_with_norm_source_and_parameters(listed):
    found = listed("attacks")
    assert found["pgd"] == [
        "Linf, sign steps from a random start (Madry et al. 2018, arXiv 1706.06083)",
        "eps (by --eps), alpha=2/255 (digits: eps/4), steps=20, restarts=1, "
        "target (optional), stop (optional)",
    ]
    assert found["pgd_l2"] == [
        "L2, gradient steps from a random start (Madry et al. 2018, arXiv 1706.06083)",
        "eps (needed in the spec), alpha=eps/5 (digits: eps/4), steps=20, restarts=1, target (optional)",
    ]
    assert found["mifgsm"][1] == (  # Dong et al.: mu = 1
        "eps (by --eps), alpha=2/255 (digits: eps/4), steps=20, decay=1.0, target (optional)"
    )
    assert found["deepfool"][1] == "eps (optional), steps=50, overshoot=0.02"
    assert found["square"] == [
        "Linf or L2, random search, without gradients (Andriushchenko et al. 2020, arXiv 1912.00049)",
        "eps (by --eps), norm=Linf, queries=1000, restarts=1",
    ]
    assert found["cw"][1] == "eps (optional), c=1.0, kappa=0.0, steps=50, lr=0.01, target (optional)"
    assert found["autoattack"][1] == "eps (by --eps), norm=Linf"
    assert found.keys() == set(ATTACKS)
    assert all(len(lines) == 2 and "arXiv" in lines[0] for lines in found.values())


def test_what_an_attack_is_takes_few_words():
    assert [name for name in ATTACKS if not 3 <= len(ATTACKS[name].about.split()) <= 6] == []


def test_corruptions_are_listed_with_what_they_are(listed):
    found = listed("corruptions")
    assert found["fog"] == [
        "Clouds of fractal noise (Hendrycks and Dietterich 2019, arXiv 1903.12261)",
        "severity 1 to 5 (all unless given)",
    ]
    assert found.keys() == set(CORRUPTIONS)
    assert len(found) == 19
    assert all(3 <= len(lines[0].partition(" (")[0].split()) <= 8 for lines in found.values())


@pytest.mark.slow
def test_a_plug_in_is_described_by_its_docstring(command, tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    script = (
        "import sys; from robust_interp.cli.main import main; "
        f"main(['ls', 'attacks', '--plugin', {str(tmp_path / 'mine.py')!r}]); "
        f"main(['ls', 'corruptions', '--plugin', {str(tmp_path / 'mine.py')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = [line.strip() for line in done.stdout.splitlines()]
    at = next(at for at, line in enumerate(lines) if line.startswith("upwards "))
    assert lines[at + 1 : at + 3] == [
        "L2, Brighter, step by step",
        "eps (needed in the spec), alpha=eps/4 (digits: eps/4), rounds=3",
    ]
    at = next(at for at, line in enumerate(lines) if line.startswith("plain "))
    assert lines[at + 1 :] == ["severity 1 to 5 (all unless given)"]


@pytest.mark.slow
def test_descriptions_need_no_torch():
    script = (
        "import sys; from robust_interp.cli.main import main; main(['ls', 'attacks']); "
        "main(['ls', 'corruptions']); "
        "print([name for name in ('torch', 'timm', 'torchattacks') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert max(map(len, done.stdout.splitlines())) <= 120
