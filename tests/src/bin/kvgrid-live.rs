//! Puts what the tests have run against real Dynamo into `docs/dynamo.md`; with `--check` only
//! says whether that stands there.

use std::path::Path;
use std::process::ExitCode;

use kvgrid_tests::dynamo;

#[allow(
    clippy::print_stderr,
    reason = "the last words of a program go to its stderr"
)]
fn main() -> ExitCode {
    let check = std::env::args()
        .nth(1)
        .is_some_and(|flag| flag == "--check");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/dynamo.md");
    match dynamo::tell_live(&page, check) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvgrid-live: {error:#}");
            ExitCode::FAILURE
        }
    }
}
