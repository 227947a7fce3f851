"""The checkout that the tests are in."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
