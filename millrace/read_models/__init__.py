"""Read models: their declarations, the rows that are stored of them, how they are built, shown, and fail."""

from typing import TYPE_CHECKING

from millrace.late_imports import imported_late

if TYPE_CHECKING:
    from millrace.read_models.declared.recompute import recompute
else:
    # declaring needs no Spark
    __getattr__ = imported_late(__name__, {"read_models.declared.recompute": "recompute"})

__all__ = ["recompute"]
