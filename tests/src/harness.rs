//! Whole grids for tests.
