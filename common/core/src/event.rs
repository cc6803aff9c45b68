//! KV events, normalised.
