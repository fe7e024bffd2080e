"""How an extra is installed, from a clone and from elsewhere."""

from robust_interp.core import extras


def test_an_extra_is_installed_from_where_the_package_is(tmp_path, monkeypatch):
    package = tmp_path / "my clone" / "robust_interp"
    package.mkdir(parents=True)
    monkeypatch.setattr(extras.robust_interp, "__file__", str(package / "__init__.py"))
    assert extras.install("hf") == "pip install 'robust-interp[hf]'"
    (package.parent / "pyproject.toml").write_text("")
    assert extras.install("hf") == f"pip install -e '{package.parent}[hf]'"
