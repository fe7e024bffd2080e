"""Training in worker processes: groups of trainings are the tasks of a worker pool.

A worker writes states and checkpoints itself, so all must see the same folders. What a lost worker had begun
goes on elsewhere from its last state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from robust_interp import data, zoo
from robust_interp.core.errors import Stopped, UserError
from robust_interp.core.worker_pool import Told, WorkerPool, Workers
from robust_interp.training.train import Start, Training, destination, train_together
from robust_interp.training.trainer import Status, TrainingError

GRACE = 30.0  # seconds that workers have to keep their states when the run is stopped

Group = tuple[Training, ...]
Outcomes = dict[Training, zoo.Checkpoint | TrainingError]


@dataclass(frozen=True)
class Setting:
    """What all trainings of a run have in common.

    Attributes:
        dataset: Its name; `fingerprint` is that of its training split.
        out: The zoo folder.
        data_dir, device, save_every, compiled: As for `train.train_together`.
        plugins: Files of plug-ins.
    """

    dataset: str
    fingerprint: str
    out: Path
    data_dir: str | None
    device: str
    save_every: int
    compiled: bool
    plugins: tuple[str, ...] = ()

    def folder(self, what: Training) -> Path:
        """The checkpoint folder of a training."""
        return destination(what.architecture, self.dataset, what.recipe, what.seed, self.out)


class GroupTraining:
    """Trains groups in a worker, each side by side."""

    def __init__(self, setting: Setting) -> None:
        if setting.plugins:
            from robust_interp.plugins import load

            for file in setting.plugins:
                load(file)
        self._setting = setting
        self._training = data.load(setting.dataset, "train", setting.data_dir)
        if self._training.fingerprint != setting.fingerprint:
            raise UserError(
                f"a worker finds other data under the name {setting.dataset}: give the same --data-dir"
            )

    def __call__(self, group: Group, told: Told) -> list[TrainingError | None] | None:
        """Train a group; of each why it failed, or None. None for all if it was told to stop.

        News are the number of a training in the group, and the values of a `Start`, of a `Status`, or nothing
        where it begins.
        """
        setting, number = self._setting, {what: at for at, what in enumerate(group)}
        for at in number.values():
            told((at, "begins", {}))
        missing = [what for what in group if not setting.folder(what).exists()]  # of a lost worker's group
        try:
            outcomes = train_together(
                missing,
                setting.dataset,
                setting.out,
                data_dir=setting.data_dir,
                device=setting.device,
                report=lambda what, status: told((number[what], "status", asdict(status))),
                resumed=lambda what, start: told((number[what], "start", asdict(start))),
                stopping=lambda: told.is_to_stop,
                save_every=setting.save_every,
                compiled=setting.compiled,
                training=self._training,
            )
        except Stopped:
            if told.is_to_stop:
                return None
            raise SystemExit(1) from None  # its machine is taken away: it goes on elsewhere
        found = [outcomes.get(what) for what in group]
        return [one if isinstance(one, TrainingError) else None for one in found]


class Watch(Protocol):
    """What is told of trainings in workers, besides where they are."""

    def begins(self, what: Training) -> None:
        """It is begun, or begun again as its worker was lost."""
        ...

    def resumed(self, what: Training, start: Start) -> None: ...

    def alive(self, alive: int, workers: int) -> None: ...


def shared(trainings: Sequence[Training], at_once: int, workers: int) -> list[Group]:
    """Groups of trainings in order, such that all workers have some, of `at_once` at most."""
    size = max(1, min(at_once, -(-len(trainings) // workers)))
    return [tuple(trainings[at : at + size]) for at in range(0, len(trainings), size)]


def train_groups(
    workers: Workers,
    groups: Sequence[Group],
    setting: Setting,
    report: Callable[[Training, Status], None],
    watch: Watch,
    log: Callable[[str], None] = lambda line: None,
) -> Iterator[Outcomes]:
    """Train groups in workers; yields what became of each group, in the order in which they end.

    Args:
        workers: As `worker_pool.cluster` gives them.
        groups: As of `shared`.
        setting: How they are trained.
        report: Called with where one is, about every half second.
        watch: Told of the rest.
        log: Called with a line for each worker and each group.

    Raises:
        UserError: if a training cannot be; or, when all others are done, if one was lost with its workers
            again and again.
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
    """What a log calls it."""
    return ", ".join(f"{what.architecture} {what.recipe.name} seed {what.seed}" for what in group)
