"""Forty read models as a package of declarations, for a platform that is measured.

Belongs here: what MILLRACE_DECLARATIONS names. Not here: the models (`benchmarks.views.models`).
"""
