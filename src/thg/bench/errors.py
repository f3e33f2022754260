"""The errors of a benchmark's configuration and of its run folder."""

from thg.errors import THGError


class ConfigError(THGError, ValueError):
    """An invalid benchmark configuration."""


class RunFolderError(THGError):
    """A run folder that belongs to another run, is incomplete, or cannot be read."""
