//! Tests that say why they are left out.

use std::io::Write as _;

/// Says that a test was skipped, where cargo's capture of passing tests doesn't swallow it.
pub(crate) fn skip(test: &str, reason: &str) {
    // libtest captures the print macros, not the handle; the line is lost only with stderr.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}
