//! Tells edges what the site has cached.
