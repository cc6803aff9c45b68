//! Decodes what an engine publishes about its KV cache.
