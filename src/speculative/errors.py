"""What the decoding module raises: one clear sentence that says what was wrong, where, and what is allowed."""


class TinydraftError(Exception):
    """Base of every error that this project raises on purpose; its text is fit to be shown to a user as it is."""


class ModelError(TinydraftError):
    """Weights, a tokenizer, a device or a dtype that cannot be used, or logits that are not numbers."""


class PromptError(TinydraftError):
    """A prompt that cannot be decoded: empty, of the wrong shape, or too long for the context."""


class SettingsError(TinydraftError):
    """A decoding setting outside what it allows, such as a negative temperature."""


class DownloadError(TinydraftError):
    """Weights that could not be fetched: no network, a refused connection, a hash that differs, a full disk."""
