"""Train networks in worker processes. A task of the worker pool is a group trained side by side.

A worker writes states and checkpoints itself, so all processes must see the same folders. If a worker is
lost, another one continues its trainings from their last states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from robust_interp import data, zoo
from robust_interp.core.errors import Stopped, UserError
from robust_interp.core.worker_pool import Channel, WorkerPool, Workers
from robust_interp.plugins import load_same
from robust_interp.training.job import Start, Training, destination
from robust_interp.training.train import train_together
from robust_interp.training.trainer import Status, TrainingError

GRACE = 30.0  # seconds that workers have to save their states when the run is stopped

Group = tuple[Training, ...]
Outcomes = dict[Training, zoo.Checkpoint | TrainingError]


@dataclass(frozen=True)
class Setting:
    """Settings that all trainings of a run share.

    Attributes:
        dataset: Name of the data set.
        fingerprint: Fingerprint of its training split.
        out: The zoo folder.
        data_dir: See `train.train_together`.
        device: See `train.train_together`.
        save_every: See `train.train_together`.
        compiled: See `train.train_together`.
        plugins: Plug-in files to load, with their hashes.
    """

    dataset: str
    fingerprint: str
    out: Path
    data_dir: str | None
    device: str
    save_every: int
    compiled: bool
    plugins: Mapping[Path, str]

    def folder(self, what: Training) -> Path:
        """Return the checkpoint folder of a training."""
        return destination(what, self.dataset, self.out)


class GroupTraining:
    """Trains groups of networks in a worker, those of a group side by side."""

    def __init__(self, setting: Setting) -> None:
        load_same(setting.plugins)
        self._setting = setting
        self._training = data.load(setting.dataset, "train", setting.data_dir)
        self._training.check_same(setting.fingerprint)

    def __call__(self, group: Group, channel: Channel) -> list[TrainingError | None] | None:
        """Train a group.

        The news are tuples (position in the group, kind, values): kind ``begins`` without values, ``start``
        with those of a `Start`, ``status`` with those of a `Status`.

        Returns:
            The error of each training, None for a successful one; or None if it was asked to stop.
        """
        setting, number = self._setting, {what: at for at, what in enumerate(group)}
        for at in number.values():
            channel((at, "begins", {}))
        missing = [
            what for what in group if not setting.folder(what).exists()
        ]  # a lost worker made the others
        try:
            outcomes = train_together(
                missing,
                setting.dataset,
                setting.out,
                data_dir=setting.data_dir,
                device=setting.device,
                report=lambda what, status: channel((number[what], "status", asdict(status))),
                resumed=lambda what, start: channel((number[what], "start", asdict(start))),
                stopping=lambda: channel.is_to_stop,
                save_every=setting.save_every,
                compiled=setting.compiled,
                training=self._training,
            )
        except Stopped:
            if channel.is_to_stop:
                return None
            raise SystemExit(1) from None  # a signal to this worker: another one continues
        found = [outcomes.get(what) for what in group]
        return [one if isinstance(one, TrainingError) else None for one in found]


class TrainingWatch(Protocol):
    """Listener for events of trainings in workers."""

    def begins(self, what: Training) -> None:
        """Called when a worker starts a training, or restarts it after another worker was lost."""
        ...

    def resumed(self, what: Training, start: Start) -> None: ...

    def alive(self, alive: int, workers: int) -> None: ...


def split_into_groups(trainings: Sequence[Training], at_once: int, workers: int) -> list[Group]:
    """Split trainings, in order, into groups of at most `at_once`, if possible one for every worker."""
    size = max(1, min(at_once, -(-len(trainings) // workers)))
    return [tuple(trainings[at : at + size]) for at in range(0, len(trainings), size)]


def train_groups(
    workers: Workers,
    groups: Sequence[Group],
    setting: Setting,
    report: Callable[[Training, Status], None],
    watch: TrainingWatch,
    log: Callable[[str], None],
) -> Iterator[Outcomes]:
    """Train groups in workers, and yield the outcomes of each group when it ends.

    Args:
        workers: The workers, from `worker_pool.cluster`.
        groups: The groups, from `split_into_groups`.
        setting: The settings of all trainings.
        report: Called with each training and its status, about every half second.
        watch: Listener for the other events.
        log: Called with a line of text for each worker and each group.

    Raises:
        UserError: if a training cannot run; or, after all others have ended, if one has lost
            `worker_pool.MAX_ATTEMPTS` workers.
    """

    def news(group: Group, told: tuple[int, str, dict[str, Any]]) -> None:
        at, kind, values = told
        watch.alive(*pool.alive)
        if kind == "begins":
            watch.begins(group[at])
        elif kind == "start":
            watch.resumed(group[at], Start(**values))
        else:
            report(group[at], Status(**values))

    lost = []
    pool: WorkerPool[Group, Any] = WorkerPool(
        workers, GroupTraining, (replace(setting, out=setting.out.absolute()),), _name, log, news
    )
    with pool:
        try:
            for group in groups:
                pool.submit(group)
            while pool.is_busy:
                group, found = pool.next_result()
                if isinstance(found, str):
                    lost.append(found)
                else:
                    yield {
                        what: failure or _made(what, setting)
                        for what, failure in zip(group, found, strict=True)
                    }
        except BaseException:
            pool.stop(GRACE)
            raise
    if lost:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        raise UserError(f"{lost[0]}{more}; all other trainings are finished")


def _made(what: Training, setting: Setting) -> zoo.Checkpoint:
    folder = setting.folder(what)
    if not (made := zoo.made_with(folder, what.recipe.model_args())):
        raise UserError(f"a worker has written {folder}, but it is not there: all must see the same folders")
    return made


def _name(group: Group) -> str:
    """Return the name of a group in the log."""
    return ", ".join(f"{what.architecture} {what.recipe.name} seed {what.seed}" for what in group)
