//! The site's load, scraped and counted.
