//! Decides where a request goes.
