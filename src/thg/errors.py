"""The exceptions of thg. Every error that thg raises on purpose is one of these.

    THGError
    ├── PlanError                  an invalid plan, grid or budget (also a ValueError)
    ├── ScheduleError              a noise schedule or a scheduler that the core cannot represent (also a ValueError)
    ├── NonFiniteError             NaN or infinity in the latents or in a network output (also an ArithmeticError)
    ├── UnsupportedPipelineError   a pipeline without guidance to skip, or with guidance that cannot be split correctly
    ├── ConcurrentRunError         one enabled pipeline used by two threads at once
    ├── ProfileError               a calibration profile that is broken, of another version or of another model
    ├── MissingExtraError          a missing optional dependency or weights file (also an ImportError)
    │   raised by the benchmark (thg.bench):
    ├── ConfigError                a configuration that cannot be run (also a ValueError)
    ├── DataError                  prompts or references that cannot be read (also a ValueError)
    ├── MetricError                samples that a metric cannot measure (also a ValueError)
    ├── CacheError                 a third-party cache that is missing or does not support the pipeline
    ├── RunFolderError             a run's folder that is damaged, or of another configuration
    │   raised by the studio (thg.studio):
    └── QueueFull                  too many runs are waiting

A message names the value, the cause, and the code to write instead.
"""


class THGError(Exception):
    """Base class of all errors of thg."""


class PlanError(THGError, ValueError):
    """An invalid plan, grid or budget."""


class ScheduleError(THGError, ValueError):
    """A noise schedule or a scheduler that the core cannot represent."""


class NonFiniteError(THGError, ArithmeticError):
    """NaN or infinity in the latents or in a network output."""


class UnsupportedPipelineError(THGError):
    """A pipeline without guidance to skip, or with guidance that cannot be split correctly."""


class ConcurrentRunError(THGError):
    """One enabled pipeline used by two threads at once."""


class ProfileError(THGError):
    """A calibration profile that is broken, of another version or of another model."""


class MissingExtraError(THGError, ImportError):
    """A missing optional dependency or weights file."""
