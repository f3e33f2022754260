"""The errors of a benchmark's configuration and of its run folder."""

from thg.errors import THGError


class ConfigError(THGError, ValueError):
    """A benchmark configuration that makes no sense."""


class RunFolderError(THGError):
    """A run folder that belongs to another run, is incomplete, or cannot be read."""
