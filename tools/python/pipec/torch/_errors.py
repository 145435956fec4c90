"""The error of a run: which rank stopped, at which instruction, and why."""


class PipelineError(RuntimeError):
    """A step that failed: its text names the rank, the index and the text of the instruction."""
