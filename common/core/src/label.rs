//! Labels of sites and rules over them.
