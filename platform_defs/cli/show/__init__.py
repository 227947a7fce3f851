"""The commands that only look, `millrace show …`: a file each.

Belongs here: their options, and how what they show looks. Not here: `millrace status`, and what captures lack (`capture`).
"""
