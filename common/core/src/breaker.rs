//! Stops sending to what keeps failing.
