"""The commands that have another place now, each with it.

Belongs here: one table. Not here: who answers with it (`millrace.platform_defs.cli`).
"""

MOVED = {
    "alerts": "show incidents",
    "audit": "show audit",
    "capture follow": "run capture",
    "capture reread": "capture verify --repair",
    "consume": "run handlers",
    "dead-letters": "dead list",
    "disable": "view disable",
    "discard": "dead drop",
    "enable": "view enable",
    "end-locks": "view unlock",
    "events": "show events",
    "history": "show history",
    "metrics": "run metrics",
    "psql": "dev psql",
    "push-secret": "view secret",
    "reset": "view reset",
    "retry": "dead retry",
    "seek": "view seek",
    "sequence": "run sequencer",
    "simulate": "dev simulate",
    "simulate-crm": "dev simulate-crm",
    "unregister": "view remove",
    "watch": "run service",
}
