//! Sends requests to relays.
