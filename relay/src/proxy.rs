//! Requests from edges to the frontend.
