//! Model cards from local directories.
