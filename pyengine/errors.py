"""Errors that a user can meet, by what they should do about them."""


class InvalidRequestError(ValueError):
    """The request can't be served as it is: its sender must change it.

    Attributes:
        param: the field at fault, or None when it is the request as a whole.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(InvalidRequestError):
    """The prompt, or the answer that is asked for, is longer than the model's context."""


class GrammarTooComplexError(InvalidRequestError):
    """Following the request's grammar takes more work than a sequence may. Only following it may
    show that, so a request can end so after a part of its output."""


class ModelLoadError(ValueError):
    """The model's files are missing, broken, or of a kind that pyengine doesn't support."""


class QueueFullError(RuntimeError):
    """Too many requests wait already: try again later."""


class EngineStoppedError(RuntimeError):
    """The engine is shutting down, or has died of a fault: no request can be served."""


class RequestTimeoutError(RuntimeError):
    """The request had not finished when its timeout ended."""


class StepFailedError(RuntimeError):
    """The step that this request was part of failed; the engine goes on with the others."""
