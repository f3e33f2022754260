"""The error of unusable input files."""

from thg.errors import THGError


class DataError(THGError, ValueError):
    """A prompt file, a folder of references or a statistics file that cannot be used."""
