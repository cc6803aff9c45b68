//! Sources of KV events.
