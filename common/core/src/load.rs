//! A site's load: parts, merging, staleness.
