//! Admin endpoints.
