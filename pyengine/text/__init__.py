"""Text to tokens and back: tokenizers, incremental detokenization, chat templates."""
