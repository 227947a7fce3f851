"""The read models, each under its own name.

Belongs here: nothing else.
"""

from benchmarks.views.models import models

VIEWS = 40

globals().update({model.name: model for model in models(VIEWS)})
