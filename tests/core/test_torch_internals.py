"""What core/torch_internals.py, and nothing else, takes for granted of torch.

Where a new version of torch is another in this, these tests say so by name. The errors are torch's own.
"""

import io
import multiprocessing
import os
import pickle
import zipfile
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from robust_interp.core import torch_internals
from robust_interp.core.errors import UserError


class Refused:
    """A class that the weights-only loader does not know."""


class Runs:
    """An object whose pickle calls a function of a module that the loader blocks."""

    def __reduce__(self):
        return os.getcwd, ()


class Dies(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, place):
        os._exit(1)


class Fails(torch.utils.data.Dataset):
    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 1

    def __getitem__(self, place):
        try:
            {}["before"]
        except KeyError:
            raise self.error from None


class Counts(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


def refusal_of(path):
    with pytest.raises(pickle.UnpicklingError) as refusal:
        torch.load(path, weights_only=True)
    return refusal.value


def written(folder, content):
    """Write an object in the format of torch.save, without torch's pickler."""
    path, pickled = folder / "w.pt", io.BytesIO()
    pickle.Pickler(pickled, protocol=2).dump(content)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w/data.pkl", pickled.getvalue())
        archive.writestr("w/version", "3\n")
        archive.writestr("w/byteorder", "little")
    return path


def test_the_allocator_says_that_memory_does_not_suffice():
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**55, dtype=torch.uint8)  # 32 PiB: more than any address space
    text = f"torch words it {error.value}"
    assert torch_internals.reports_lack_of_memory(error.value), text


def test_torchs_own_class_is_a_lack_of_memory_whatever_it_says():
    assert torch_internals.reports_lack_of_memory(torch.OutOfMemoryError("no room"))


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_a_library_of_cuda_without_memory_is_a_lack_of_memory(text):
    assert torch_internals.reports_lack_of_memory(RuntimeError(text))


def test_another_failure_is_no_lack_of_memory():
    with pytest.raises(RuntimeError) as error:
        torch.ones(2) @ torch.ones(3)
    assert not torch_internals.reports_lack_of_memory(error.value)


def test_the_workers_of_an_iterator_can_be_stopped():
    loader = torch.utils.data.DataLoader(list(range(9)), num_workers=2, multiprocessing_context="fork")
    before = set(multiprocessing.active_children())
    iterator = iter(loader)
    assert len(set(multiprocessing.active_children()) - before) == 2
    torch_internals.stop_workers(iterator)
    assert set(multiprocessing.active_children()) <= before


def test_a_dead_worker_is_told_from_another_failure():
    loader = torch.utils.data.DataLoader(Dies(), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(RuntimeError) as error:
        next(iter(loader))
    assert torch_internals.dead_worker(error.value), f"torch words it {error.value}"
    assert torch_internals.dead_worker(RuntimeError("CUDA error")) == ""
    assert (
        torch_internals.dead_worker(RuntimeError("Caught RuntimeError in DataLoader worker process 0")) == ""
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("odd\n  and more"), "ValueError: odd"),
        (KeyError("cat"), "KeyError: 'cat'"),
        (zipfile.BadZipFile("no zip"), "zipfile.BadZipFile: no zip"),
        (UserError("the image a.png: odd"), "the image a.png: odd"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"), "UnicodeDecodeError: 'utf-8' codec can't decode"),
    ],
)
def test_the_error_of_a_worker_is_found_in_what_torch_makes_of_it(error, told):
    loader = torch.utils.data.DataLoader(Fails(error), num_workers=1, multiprocessing_context="fork")
    with pytest.raises((type(error), RuntimeError)) as passed_on:
        next(iter(loader))
    found = torch_internals.error_in_worker(passed_on.value)
    assert found.startswith(told), f"torch words it {passed_on.value}"
    assert torch_internals.error_in_worker(error) is None


def test_the_loader_names_a_class_that_it_does_not_know(tmp_path):
    refusal = refusal_of(written(tmp_path, {"a": Refused()}))
    name = f"{Refused.__module__}.Refused"
    assert torch_internals.refused_classes(refusal) == {name}, f"torch words it {refusal}"
    assert torch_internals.pickled_name(refusal) == name


def test_the_loader_names_a_function_that_it_blocks(tmp_path):
    refusal = refusal_of(written(tmp_path, {"a": Runs()}))
    assert torch_internals.pickled_name(refusal) == f"{os.getcwd.__module__}.getcwd", f"torch: {refusal}"
    assert torch_internals.refused_classes(refusal) == set()  # no setting of the loader allows it


def test_the_loader_reads_what_it_knows(tmp_path):
    """Otherwise it would refuse the two files above for their form."""
    assert torch.load(written(tmp_path, OrderedDict(a=1)), weights_only=True) == {"a": 1}


def test_the_refusal_of_a_plain_pickle_suggests_unsafe_loading(tmp_path):
    path = tmp_path / "w.pt"
    path.write_bytes(pickle.dumps([1, 2], protocol=4))  # the loader knows protocol 2 only
    refusal = refusal_of(path)
    first_line = str(refusal).splitlines()[0]
    assert torch_internals.suggests_unsafe_loading(first_line), f"torch words it {first_line}"
    assert not torch_internals.suggests_unsafe_loading("unexpected end of file")


@pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="torch before 2.9 has no such settings"
)
@pytest.mark.parametrize("backend", ["cuda", "mkldnn"])
@pytest.mark.parametrize("operation", ["all", "matmul", "conv", "rnn"])
def test_each_new_setting_of_precision_can_be_read_and_changed(backend, operation):
    before = torch_internals.fp32_precision(backend, operation)
    try:
        torch_internals.set_fp32_precision(backend, operation, "ieee")
        assert torch_internals.fp32_precision(backend, operation) == "ieee"
    finally:
        torch_internals.set_fp32_precision(backend, operation, before)


def test_the_folder_of_compiled_code_is_the_one_that_is_set(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    assert torch_internals.compile_cache() == tmp_path / "cache"
    assert (tmp_path / "cache").is_dir()


def test_all_function_modes_are_off_and_then_on_again():
    with Counts() as outer, Counts() as inner:
        with torch_internals.without_function_modes():
            torch.ones(1)
        assert (outer.calls, inner.calls) == (0, 0)
        torch.ones(1)
    assert inner.calls == 1
    assert outer.calls == 1


class Others(Counts):
    pass


@pytest.mark.parametrize("classes", [(Counts, Others), (Others, Counts)])
def test_the_modes_of_one_class_are_off_and_then_on_again(classes):
    with torch.device("meta"), classes[0]() as outer, classes[1]() as inner:
        off, on = (outer, inner) if isinstance(outer, Others) else (inner, outer)
        with torch_internals.without_function_modes(Others):
            made = torch.ones(1)
        assert (off.calls, on.calls) == (0, 1)
        torch.ones(1)
        assert (off.calls, on.calls) == (1, 2)
    assert made.is_meta


def test_the_settings_of_a_compilation_exist_and_are_restored():
    from torch._dynamo import config as dynamo
    from torch._functorch import config as functorch

    def now():
        return dynamo.recompile_limit, dynamo.accumulated_recompile_limit, functorch.donated_buffer

    before = now()
    with torch_internals.compilation_limit(1234), torch_internals.kept_buffers():
        assert now() == (1234, 1234, False)
    assert now() == before


def test_a_compiled_module_leads_to_the_module_itself():
    module = nn.Linear(2, 2)
    compiled = torch.compile(module)
    assert compiled is not module
    assert torch_internals.uncompiled(compiled) is module
    assert torch_internals.uncompiled(module) is module


def test_another_module_with_such_a_part_is_itself():
    module = nn.Sequential()
    module._orig_mod = nn.Linear(2, 2)
    assert torch_internals.uncompiled(module) is module


@pytest.mark.parametrize(
    ("make", "quantised", "by_batch"),
    [
        (lambda: nn.Linear(2, 2), False, False),
        (lambda: torch.ao.nn.quantized.Linear(2, 2), True, False),
        (lambda: torch.ao.nn.quantized.dynamic.Linear(2, 2), True, True),
    ],
    ids=["float", "static", "dynamic"],
)
def test_quantised_modules_are_told_by_where_torch_defines_them(make, quantised, by_batch):
    module = make()
    assert torch_internals.is_quantised(module) is quantised
    assert torch_internals.is_quantised_by_batch(module) is by_batch


HOOKS = ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]


@pytest.mark.parametrize("register", HOOKS)
def test_a_module_tells_its_hooks(register):
    module = nn.Linear(2, 2)
    assert not torch_internals.has_hooks(module)
    handle = getattr(module, register)(lambda *arguments: None)
    assert torch_internals.has_hooks(module), f"torch keeps what {register} adds elsewhere"
    handle.remove()
    assert not torch_internals.has_hooks(module)
