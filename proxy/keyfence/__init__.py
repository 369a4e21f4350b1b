"""keyfence: a Redis proxy that holds every key of every command against a written namespace policy."""

from . import _compiled

__version__ = "0.1.0"

_compiled.prepare()
