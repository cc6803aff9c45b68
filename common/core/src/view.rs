//! What an edge knows of the grid.
