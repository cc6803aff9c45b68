//! Keeps the view of the grid.
