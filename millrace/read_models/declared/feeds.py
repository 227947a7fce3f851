"""Which read models take the changes of others."""

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from millrace.read_models.declared.declaration import ReadModel


def feeding_circles(models: Iterable[ReadModel]) -> list[list[str]]:
    """Return one way around each circle of models that take each other's changes, until none is left."""
    takes = {
        model.name: {decider.removeprefix("model:") for decider in model.deciders or () if decider.startswith("model:")}
        for model in models
    }
    circles = list[list[str]]()
    while True:
        try:
            TopologicalSorter(takes).prepare()
        except CycleError as error:
            circles.append(error.args[1])
            del takes[error.args[1][0]]
        else:
            return circles
