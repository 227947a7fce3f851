"""The commands that only look, `millrace show …`: a file each.

Belongs here: their options, and how rows look. Not here: `millrace status`, and what captures lack (`capture`).
"""
